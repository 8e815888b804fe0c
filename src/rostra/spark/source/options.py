"""The options of a read and their checks. Names are those of Spark's Kafka source where it has one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from rostra.client.core.options import DEFAULT_ADDRESS, check_address
from rostra.errors import InvalidSetting
from rostra.model.ids import check_topic_name
from rostra.model.patterns import Pattern
from rostra.spark.source.bounds import EARLIEST, LATEST, AtOffsets, AtTimes, Bound

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp"})
"""Said to Spark, which then does not look for each record."""
RECORDS_PER_TASK_MAX = 2_500_000
STALL_MS = 120_000
CONNECT_MS = 10_000
TRIGGER_DELAY_MS = 15 * 60 * 1000
"""As in Spark's Kafka source."""

STAGE = "rostra.stage"
"""Internal: tasks write files below this directory and return their names. See `spark/source/parquet_staging.py`."""
START = "rostra.start"
"""Internal: the positions at which a stream begins, as they stand in Spark's log."""

BATCH_ONLY = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")
STREAM_ONLY = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay")
KNOWN = {
    name.lower(): name
    for name in (
        "nodes",
        "subscribe",
        "subscribePattern",
        "assign",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "failOnDataLoss",
        "columns",
        "includeHeaders",
        "connectTimeoutMs",
        "stallTimeoutMs",
    )
}


class TopicNames(msgspec.Struct, frozen=True):
    """Topics by name."""

    topics: tuple[str, ...]


class TopicPattern(msgspec.Struct, frozen=True):
    """Topics that match a pattern, including topics created later."""

    pattern: Pattern


class AssignedPartitions(msgspec.Struct, frozen=True):
    """Given partitions only."""

    partitions: dict[str, tuple[int, ...]]


Chosen = TopicNames | TopicPattern | AssignedPartitions


class ReadOptions(msgspec.Struct, frozen=True):
    """The options of one read."""

    nodes: tuple[str, ...]
    chosen: Chosen
    starting: Bound
    ending: Bound = LATEST
    offsets_per_trigger_max: int = 0
    """Zero means: all there is."""
    offsets_per_trigger_min: int = 0
    trigger_delay_max_ms: int = TRIGGER_DELAY_MS
    """How long a batch waits for the least number of offsets."""
    tasks_min: int = 0
    records_per_task_max: int = RECORDS_PER_TASK_MAX
    fail_on_loss: bool = True
    columns: tuple[str, ...] = COLUMNS
    nullable: tuple[str, ...] = ()
    """Columns that are never null but that the reader declares as nullable: Arrow has to say the same."""
    connect_timeout_ms: int = CONNECT_MS
    stall_timeout_ms: int = STALL_MS
    """How long a task waits for records that are there before it gives up."""
    stage: str = ""
    start: str = ""


def parse_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parses options; `InvalidSetting` if one is invalid, unknown, contradictory, or not for this kind of read."""
    options = {name.lower(): value for name, value in given.items()}
    for name in sorted(options):
        _check_known(name, given, streaming)
    starting = _bound(options, "starting", LATEST if streaming else EARLIEST)
    ending = _bound(options, "ending", LATEST)
    if not streaming and starting == LATEST:
        raise InvalidSetting("startingOffsets", "a batch read that begins at the end reads nothing")
    if ending == EARLIEST:
        raise InvalidSetting("endingOffsets", "a read that ends at the beginning reads nothing")
    most = parse_number(options, "maxOffsetsPerTrigger", 0, least=1)
    least = parse_number(options, "minOffsetsPerTrigger", 0, least=1)
    if most and least > most:
        raise InvalidSetting("minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger, {most}")
    return ReadOptions(
        parse_nodes(options.get("nodes", DEFAULT_ADDRESS)),
        _chosen(options),
        starting,
        ending,
        offsets_per_trigger_max=most,
        offsets_per_trigger_min=least,
        trigger_delay_max_ms=_duration_ms(options, "maxTriggerDelay", TRIGGER_DELAY_MS),
        tasks_min=parse_number(options, "minPartitions", 0, least=1),
        records_per_task_max=parse_number(options, "maxRecordsPerPartition", RECORDS_PER_TASK_MAX, least=1),
        fail_on_loss=parse_truth(options, "failOnDataLoss", True),
        columns=_columns(options),
        connect_timeout_ms=parse_number(options, "connectTimeoutMs", CONNECT_MS, least=1),
        stall_timeout_ms=parse_number(options, "stallTimeoutMs", STALL_MS, least=1),
        stage=options.get(STAGE, ""),
        start=options.get(START, ""),
    )


def _check_known(name: str, given: Mapping[str, str], streaming: bool) -> None:
    if name in (STAGE, START):
        return
    if name not in KNOWN:
        written = next(written for written in given if written.lower() == name)
        raise InvalidSetting(written, f"there is no such option; there are {', '.join(KNOWN.values())}")
    if streaming and name in BATCH_ONLY:
        raise InvalidSetting(KNOWN[name], "a stream has no end; it is an option of batch reads")
    if not streaming and name in STREAM_ONLY:
        raise InvalidSetting(KNOWN[name], "a batch read has no triggers; it is an option of streams")


def parse_nodes(written: str) -> tuple[str, ...]:
    addresses = _list(written)
    if not addresses:
        raise InvalidSetting("nodes", "at least one address is needed")
    for address in addresses:
        try:
            check_address(address)
        except InvalidSetting as error:
            raise InvalidSetting("nodes", error.reason) from None
    return addresses


def _chosen(options: Mapping[str, str]) -> Chosen:
    ways = [name for name in ("subscribe", "subscribepattern", "assign") if name in options]
    if len(ways) != 1:
        raise InvalidSetting("subscribe", "exactly one of subscribe, subscribePattern and assign is needed")
    written = options[ways[0]]
    match ways[0]:
        case "subscribe":
            names = tuple(dict.fromkeys(_list(written)))
            if not names:
                raise InvalidSetting("subscribe", "it names no topic")
            for name in names:
                check_topic_name(name)
            return TopicNames(names)
        case "subscribepattern":
            return TopicPattern(Pattern.parse(written.strip()))
        case _:
            return AssignedPartitions(_partitions(written))


def _partitions(written: str) -> dict[str, tuple[int, ...]]:
    try:
        assigned = msgspec.json.decode(written, type=dict[str, list[int]])
    except msgspec.MsgspecError as error:
        raise InvalidSetting("assign", f'{error}; it looks like {{"orders":[0,1]}}') from None
    for name, partitions in assigned.items():
        check_topic_name(name)
        if not partitions or min(partitions) < 0 or len(set(partitions)) < len(partitions):
            raise InvalidSetting("assign", f"{partitions} are no partitions of {name}")
    if not assigned:
        raise InvalidSetting("assign", "it names no topic")
    return {name: tuple(sorted(partitions)) for name, partitions in sorted(assigned.items())}


def _bound(options: Mapping[str, str], end: str, default: Bound) -> Bound:
    ways = [f"{end}{way}" for way in ("Offsets", "Timestamp", "OffsetsByTimestamp")]
    given = [name for name in ways if name.lower() in options]
    if len(given) > 1:
        raise InvalidSetting(given[0], f"it contradicts {given[1]}")
    if not given:
        return default
    name = given[0]
    written = options[name.lower()].strip()
    if name == ways[1]:
        return AtTimes({}, _moment_us(name, written))
    if name == ways[0] and written.lower() in ("earliest", "latest"):
        return EARLIEST if written.lower() == "earliest" else LATEST
    try:
        by_partition = msgspec.json.decode(written, type=dict[str, dict[str, int]])
        numbered = {
            topic: {int(partition): value for partition, value in offsets.items()}
            for topic, offsets in by_partition.items()
        }
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidSetting(name, f'{error}; it looks like earliest, latest or {{"orders":{{"0":23}}}}') from None
    if name == ways[0]:
        if any(value < -2 for offsets in numbered.values() for value in offsets.values()):
            raise InvalidSetting(name, "an offset is not negative, but for -1, the end, and -2, the beginning")
        return AtOffsets(numbered)
    return AtTimes(
        {topic: {p: _since_1970_us(name, ms) for p, ms in moments.items()} for topic, moments in numbered.items()}
    )


def _moment_us(name: str, written: str) -> int:
    """Parses milliseconds since 1970, or a date and time in ISO 8601; without a zone it is UTC."""
    if written.isdecimal():
        return _since_1970_us(name, int(written))
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise InvalidSetting(
            name, f"{written!r} is neither milliseconds since 1970 nor like 2026-01-31T08:00:00Z"
        ) from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return _since_1970_us(name, round(moment.timestamp() * 1000))


def _since_1970_us(name: str, moment_ms: int) -> int:
    if not 0 <= moment_ms < (1 << 63) // 1000:
        raise InvalidSetting(name, f"{moment_ms} are no milliseconds since 1970")
    return moment_ms * 1000


def parse_number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    written = options.get(name.lower())
    if written is None:
        return default
    if not written.strip().isdecimal() or int(written) < least:
        raise InvalidSetting(name, f"{written!r} is no whole number from {least} on")
    return int(written)


def parse_truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    written = options.get(name.lower(), str(default)).strip().lower()
    if written not in ("true", "false"):
        raise InvalidSetting(name, f"{written!r} is neither true nor false")
    return written == "true"


def _duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    written = options.get(name.lower())
    if written is None:
        return default
    found = re.fullmatch(r"(\d+) *(ms|s|m|h)", written.strip())
    if found is None:
        raise InvalidSetting(name, f"{written!r} is no time such as 500ms, 30s, 15m or 1h")
    return int(found[1]) * {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[found[2]]


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    headers = parse_truth(options, "includeHeaders", True)
    if "columns" not in options:
        return COLUMNS if headers else tuple(name for name in COLUMNS if name != "headers")
    written = options["columns"]
    columns = _list(written)
    wrong = [name for name in columns if name not in COLUMNS]
    if wrong or not columns or len(set(columns)) < len(columns):
        raise InvalidSetting("columns", f"{written!r} is no choice of {', '.join(COLUMNS)}, each once")
    if "includeheaders" in options and headers != ("headers" in columns):
        raise InvalidSetting("includeHeaders", "it contradicts columns")
    return columns


def _list(written: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in written.split(",") if part.strip())


def offsets_json(offsets: Mapping[str, Mapping[int, int]]) -> str:
    """Formats offsets for `startingOffsets` and `endingOffsets`."""
    return json.dumps({topic: {str(p): n for p, n in sorted(by.items())} for topic, by in sorted(offsets.items())})
