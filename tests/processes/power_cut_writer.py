"""A process that appends and syncs on the file system under test, and reports on stdout what was synced.

Run by test_power_cut with the data directory as its only argument; one command per line on stdin.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rostra.log.store import Store
from rostra.model.batch import OwnerFlag, stamp
from rostra.model.encode import encode
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.runtime.disk.files import DiskFiles

PARTITION = Partition(TopicId(7), PartitionIndex(0))


def numbered(base: int, count: int, *, checkpoint: bool = False) -> bytearray:
    """A batch whose content follows from its offset, so that a reader can check it."""
    values = [b"record %d " % (base + index) * 40 for index in range(count)]
    made = encode(values, timestamp_us=1, control=checkpoint)
    stamp(
        made,
        partition=PARTITION,
        base_offset=base,
        owner_epoch=1,
        owner_flags=int(OwnerFlag.CHECKPOINT) if checkpoint else 0,
    )
    return made


def main(directory: Path) -> None:
    store = Store(DiskFiles(directory))
    store.recover()
    store.open(PARTITION, 1 << 20)
    for command in sys.stdin:
        match command.strip():
            case "append":
                store.append(PARTITION, [numbered(store.end(PARTITION), 10)])
            case "roll":
                store.append(PARTITION, [numbered(store.end(PARTITION), 1, checkpoint=True)])
            case "sync":
                job = store.begin_sync([PARTITION])
                job.run()
                job.finish()
            case other:
                raise ValueError(other)
        sys.stdout.write(f"{store.end(PARTITION)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
