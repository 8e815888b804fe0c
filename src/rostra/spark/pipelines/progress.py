"""Progress of a running query: records, rate and lag, from what Spark reports. Plain Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import msgspec

from rostra.spark.source.positions import lags_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.2
OBSERVED = "rostra"
WRITTEN = "rostra-windows"
_OURS = re.compile(r"rostra\.errors\.\w+: (.+)")
_ANY = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


class BatchProgress(msgspec.Struct, frozen=True):
    """One batch of a query."""

    batch: int
    records: int
    per_second: float
    lag: int | None
    """Offsets between what was read and the end; None while that is not known."""
    late: int
    """Groups of records that came behind the watermark, as Spark counts them: after it has put a batch together."""
    windows: int | None = None
    """Windows that were over and written; None for a query that has none."""
    windows_open: int = 0
    """Windows that wait for the watermark."""

    def line(self) -> str:
        lag = "" if self.lag is None else f", {self.lag:,} behind"
        late = f", {self.late:,} late" if self.late else ""
        windows = "" if self.windows is None else f", {self.windows:,} windows written, {self.windows_open:,} open"
        return f"batch {self.batch}: {self.records:,} records, {self.per_second:,.0f}/s{lag}{late}{windows}"


def progress_of(reported: Mapping[str, Any]) -> BatchProgress:
    """Parses the progress of a query from Spark's JSON."""
    lags = _lags(reported)
    operators = reported.get("stateOperators") or []
    records, per_second = _counted(reported)
    return BatchProgress(
        int(reported["batchId"]),
        records,
        per_second,
        None if lags is None else sum(lags),
        sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators),
        _windows(reported),
        sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
    )


def _windows(reported: Mapping[str, Any]) -> int | None:
    counted = (reported.get("observedMetrics") or {}).get(WRITTEN)
    return None if counted is None else int(counted.get("windows") or 0)


def metrics_of(reported: Mapping[str, Any]) -> dict[str, float]:
    """Rate and lag of a query, from its progress as Spark writes it in JSON, under the names of Spark's Kafka source.

    >>> metrics_of(json.loads(query.lastProgress.json))["maxOffsetsBehindLatest"]  # doctest: +SKIP
    """
    records, per_second = _counted(reported)
    metrics: dict[str, float] = {"records": records, "recordsPerSecond": per_second}
    lags = _lags(reported)
    if lags:
        metrics |= {
            "offsetsBehindLatest": sum(lags),
            "minOffsetsBehindLatest": min(lags),
            "maxOffsetsBehindLatest": max(lags),
            "avgOffsetsBehindLatest": sum(lags) / len(lags),
        }
    return metrics


def _lags(reported: Mapping[str, Any]) -> list[int] | None:
    """Of every partition of every topic that the query reads; None while one of its sources does not know."""
    found: list[int] = []
    known = False
    for source in reported.get("sources") or []:
        reached, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if reached is not None and latest is not None:
            known = True
            found += lags_of(reached, latest).values()
    return found if known else None


def _counted(reported: Mapping[str, Any]) -> tuple[int, float]:
    """The number of records and the rate; for a query whose rows are files, as it has counted them."""
    rows, per_second = int(reported.get("numInputRows") or 0), float(reported.get("processedRowsPerSecond") or 0.0)
    counted = (reported.get("observedMetrics") or {}).get(OBSERVED)
    if counted is None:
        return rows, per_second
    records = int(counted.get("records") or 0)
    return records, per_second * records / rows if rows else 0.0


def _offset(written: object) -> Mapping[str, Any] | None:
    decoded = json.loads(written) if isinstance(written, str) else written
    return decoded if isinstance(decoded, Mapping) and "topics" in decoded else None


def follow(query: StreamingQuery, tell: Callable[[BatchProgress], None]) -> int:
    """Reports each batch that read or wrote something until the query ends; returns the number of records.

    An interrupt stops the query first.
    """
    told, total = -1, 0
    try:
        while True:
            active = query.isActive
            for report in query.recentProgress:
                progress = progress_of(json.loads(report.json))
                if progress.batch > told and (progress.records or progress.windows):
                    told = progress.batch
                    total += progress.records
                    tell(progress)
            if not active:
                break
            sleep(POLL_S)
        error = query.exception()
        if error is not None:
            raise error
    except KeyboardInterrupt:
        stop(query)
        raise
    return total


def stop(query: StreamingQuery, patience_s: float = 30.0) -> None:
    """Stops the query; the batch in progress is repeated by the next start."""
    deadline = monotonic() + patience_s
    query.stop()
    while query.isActive and monotonic() < deadline:
        sleep(POLL_S)


def cause_of(told: str) -> str:
    """The line of Spark's error that names the cause: an error of Rostra, or else the last one."""
    ours = _OURS.findall(told)
    if ours:
        return str(ours[-1])
    others = _ANY.findall(told)
    return ": ".join(others[-1]) if others else told.strip().splitlines()[0]
