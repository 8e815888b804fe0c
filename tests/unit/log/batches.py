"""Stamped batches for tests of the log, and a store to put them into."""

from __future__ import annotations

from random import Random

from rostra.log.facts import LogSettings
from rostra.log.files import Files
from rostra.log.store import Store
from rostra.model.batch import Flag, OwnerFlag, read_header, stamp
from rostra.model.encode import encode
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.simulator.disk.faulty_files import DiskFaults, FaultyFiles

PARTITION = Partition(TopicId(0x0123456789ABCDEF), PartitionIndex(3))
OTHER = Partition(TopicId(0x0123456789ABCDEF), PartitionIndex(4))
DIRECTORY = "topics/0123456789abcdef-3"
SMALL = LogSettings(index_every_bytes=256, files_open_max=8, journal_bytes=2048, recover_chunk_bytes=1024)
"""Bounds so low that a short test reaches them."""


def batch(
    base: int,
    count: int = 1,
    *,
    epoch: int = 1,
    checkpoint: bool = False,
    control: bool = False,
    ledger: bool = False,
    suppressed: bool = False,
    value: bytes = b"value",
    times_us: list[int] | None = None,
    partition: Partition = PARTITION,
) -> bytearray:
    made = encode(
        [b"%s-%d" % (value, base + place) for place in range(count)],
        timestamp_us=1_000_000 + base,
        timestamps_us=times_us,
        producer=77,
        producer_epoch=2,
        sequence=base,
        control=control or checkpoint or ledger,
    )
    stamp(
        made,
        partition=partition,
        base_offset=base,
        owner_epoch=epoch,
        owner_flags=int(OwnerFlag.CHECKPOINT) * checkpoint
        | int(OwnerFlag.BROKER_STATE) * ledger
        | int(OwnerFlag.SUPPRESSED) * suppressed,
    )
    return made


def chain(*counts: int, base: int = 0, epoch: int = 1, value: bytes = b"value") -> list[bytearray]:
    """Batches one behind the other; a count of 0 stands for a checkpoint, which takes one offset."""
    made: list[bytearray] = []
    for count in counts:
        made.append(batch(base, max(count, 1), epoch=epoch, checkpoint=count == 0, value=value))
        base += max(count, 1)
    return made


def opened(files: Files, settings: LogSettings = SMALL) -> Store:
    store = Store(files, settings)
    store.recover()
    store.open(PARTITION, 1 << 20)
    return store


def sync(store: Store, *partitions: Partition) -> None:
    job = store.begin_sync(partitions or (PARTITION,))
    job.run()
    job.finish()


def read_all(store: Store, partition: Partition = PARTITION, bytes_max: int = 700) -> list[bytes]:
    """Every batch from first to end, one by one."""
    offset, end = store.first(partition), store.end(partition)
    found: list[bytes] = []
    while offset < end:
        chunk = store.read(partition, offset, end, bytes_max)
        found += split(chunk.batches)
        assert chunk.next > offset
        offset = chunk.next
    return found


def split(batches: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(batches):
        length = read_header(batches, at).length
        found.append(batches[at : at + length])
        at += length
    return found


def is_control(batch: bytes) -> bool:
    return bool(read_header(batch).flags & Flag.CONTROL)


def faulty(seed: int = 0, **faults: object) -> FaultyFiles:
    files = FaultyFiles(Random(seed))
    for name, fault in faults.items():
        assert hasattr(DiskFaults(), name)
        setattr(files.faults, name, fault)
    return files


def copied(files: FaultyFiles) -> dict[str, bytes]:
    """All contents by path, to make the same disk again with `disk_of`."""
    found: dict[str, bytes] = {}
    pending = [""]
    while pending:
        directory = pending.pop()
        for name in files.names(directory):
            path = f"{directory}/{name}" if directory else name
            try:
                file = files.open(path)
            except IsADirectoryError:
                pending.append(path)
                continue
            found[path] = file.read(0, file.size())
    return found


def disk_of(contents: dict[str, bytes]) -> FaultyFiles:
    files = FaultyFiles(Random(0))
    for path, content in contents.items():
        directory = path.rpartition("/")[0]
        if directory:
            files.make_directory(directory)
        file = files.open(path, create=True)
        file.append([content])
        file.begin_sync()()
    for directory in ("", "topics", DIRECTORY):
        if not directory or files.exists(directory):
            files.sync_directory(directory)
    return files
