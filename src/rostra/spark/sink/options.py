"""The options of a write and their checks. Names are those of Spark's Kafka sink where it has one."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rostra.client.core.options import DEFAULT_ADDRESS
from rostra.errors import InvalidSetting
from rostra.model.ids import check_topic_name
from rostra.spark.source.options import CONNECT_MS, parse_nodes, parse_number, parse_truth

COMMIT_MS = 120_000
PARTITIONERS = ("key", "column")
COLUMNS = ("value", "key", "headers", "timestamp", "topic", "partition")
KNOWN = {
    name.lower(): name
    for name in (
        "nodes",
        "topic",
        "partitioner",
        "txnId",
        "txnVersion",
        "atLeastOnce",
        "connectTimeoutMs",
        "commitTimeoutMs",
        # Spark passes these on to every sink.
        "checkpointLocation",
        "path",
    )
}


class WriteOptions(msgspec.Struct, frozen=True):
    """The options of one write."""

    nodes: tuple[str, ...]
    topic: str = ""
    """Empty: the column `topic` names it."""
    partitioner: str = "key"
    txn_id: str = ""
    """Names the query instead of its checkpoint."""
    txn_version: int = 0
    """The number of a batch write under its `txnId`."""
    at_least_once: bool = False
    connect_timeout_ms: int = CONNECT_MS
    commit_timeout_ms: int = COMMIT_MS


def parse_options(given: Mapping[str, str], columns: tuple[str, ...], *, streaming: bool) -> WriteOptions:
    """Parses options; `InvalidSetting` if one is invalid, unknown, or does not fit the columns of the DataFrame."""
    options = {name.lower(): value for name, value in given.items()}
    for name in sorted(options):
        if name not in KNOWN:
            raise InvalidSetting(name, f"a write has no such option; it has {', '.join(sorted(KNOWN.values()))}")
    if streaming and "txnversion" in options:
        raise InvalidSetting("txnVersion", "a stream numbers its batches by itself")
    if "txnversion" in options and "txnid" not in options:
        raise InvalidSetting("txnVersion", "it needs a txnId")
    topic = options.get("topic", "").strip()
    if topic:
        check_topic_name(topic)
    partitioner = options.get("partitioner", "column" if "partition" in columns else "key").strip().lower()
    if partitioner not in PARTITIONERS:
        raise InvalidSetting("partitioner", f"{partitioner!r} is none of {', '.join(PARTITIONERS)}")
    _check_columns(columns, topic, partitioner)
    return WriteOptions(
        parse_nodes(options.get("nodes", DEFAULT_ADDRESS)),
        topic,
        partitioner,
        options.get("txnid", "").strip(),
        parse_number(options, "txnVersion", 0, least=0),
        parse_truth(options, "atLeastOnce", False),
        parse_number(options, "connectTimeoutMs", CONNECT_MS, least=1),
        parse_number(options, "commitTimeoutMs", COMMIT_MS, least=1),
    )


def _check_columns(columns: tuple[str, ...], topic: str, partitioner: str) -> None:
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or "value" not in columns:
        raise InvalidSetting("columns", f"a write takes value, and of {', '.join(COLUMNS[1:])} any; not {columns}")
    if not topic and "topic" not in columns:
        raise InvalidSetting("topic", "neither the option nor a column says where to write to")
    if partitioner == "column" and "partition" not in columns:
        raise InvalidSetting("partitioner", "there is no column `partition`")
