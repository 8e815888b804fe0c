"""Recovery of one partition at a start.

Damage below the known-synced mark is corruption, and so is damage with an intact batch after it. Beyond the offset up
to which a sync was ever begun, intact batches prove nothing: a power cut leaves holes there, and none of it was
acknowledged. Corruption is reported and left as it is; any other damage is a torn tail, which is cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from crc32c import crc32c

from rostra.errors import CorruptLog
from rostra.log.clean_mark import CleanEnd
from rostra.log.facts import LogFacts, LogSettings, RecoveryNote
from rostra.log.files import Files
from rostra.log.index import Index
from rostra.log.journal import SyncedMark
from rostra.log.last_segment import LastSegment
from rostra.log.open_files import OpenFiles
from rostra.log.partition import PartitionLog
from rostra.log.scan import Damage, ScannedBatch, has_hole, intact_batch_behind, scan, scan_headers
from rostra.log.segment import SEGMENT_NAME, TEMPORARY_SUFFIX, Indexes, Segment
from rostra.model.ids import Partition


class PartitionRecovery:
    """Recovers one partition; `log` is filled segment by segment."""

    def __init__(
        self,
        files: Files,
        open_files: OpenFiles,
        indexes: Indexes,
        settings: LogSettings,
        log: PartitionLog,
        mark: SyncedMark | None,
        clean: CleanEnd | None,
    ) -> None:
        self._files = files
        self._open_files = open_files
        self._indexes = indexes
        self._settings = settings
        self._partition: Partition = log.partition
        self.log = log
        self._mark = mark or SyncedMark(0, 0, 0)
        self._clean = clean
        self._unsynced: list[tuple[Segment, int]] = []
        self._last = LastSegment()
        self._names: list[str] | None = None
        """Cached names in the directory, until a file is removed: there may be thousands of directories."""
        self.notes: list[RecoveryNote] = []

    # --- result ---------------------------------------------------------------------------------

    def run(self) -> bool:
        """Whether there is a log: a directory whose first file never became durable is removed."""
        self._remove_replaced()
        self._remove_trimmed()
        while self._segment_firsts() or self._mark.synced:
            try:
                self._examine()
            except _NotAsClosed:
                self._clean = None
                continue
            except Damage as damage:
                if not self._is_corruption(damage):
                    self._cut(damage)
                    continue
                self._report(damage)
            self._settle()
            return True
        self._files.remove_directory(self.log.directory)
        return False

    def mark(self) -> SyncedMark:
        """The new mark. A damaged log keeps its old mark, so that the next start comes to the same result."""
        if self.log.damage is not None:
            return self._mark
        return SyncedMark(self.log.first, self.log.end, self.log.end)

    def facts(self) -> LogFacts:
        path = self.log.active.path
        return self._last.add_to(self.log.facts(), lambda at, count: self._open_files.get(path).read(at, count))

    # --- examination -----------------------------------------------------------------------------------

    def _found(self) -> dict[int, int]:
        """First offsets of the existing segments in order, each with its latest version."""
        found: dict[int, int] = {}
        for match in filter(None, map(SEGMENT_NAME.fullmatch, self._listed())):
            first, version = int(match[1]), int(match[2] or 0)
            found[first] = max(version, found.get(first, 0))
        return dict(sorted(found.items()))

    def _listed(self) -> list[str]:
        if self._names is None:
            self._names = self._files.names(self.log.directory)
        return self._names

    def _segment_firsts(self) -> list[int]:
        return list(self._found())

    def _examine(self) -> None:
        """Fills the log; raises Damage where it ends too early, with the segments before that in place."""
        log = self.log
        log.segments = ()
        self._unsynced = []
        self._last = LastSegment()
        versions = self._found()
        firsts = list(versions)
        expected = self._mark.first if self._mark.synced else firsts[0]
        for first, following in zip(firsts, [*firsts[1:], None], strict=False):
            if first != expected:
                raise Damage(log.active.bytes if log.segments else 0, expected, f"the next segment begins at {first}")
            segment = Segment(log.directory, first, Index(self._settings.index_every_bytes), versions[first])
            log.segments = (*log.segments, segment)
            if following is None:
                self._examine_last(segment)
            else:
                self._examine_sealed(segment, following)
            expected = segment.next
        if expected < self._mark.synced or not firsts:
            end = log.active.bytes if log.segments else 0
            raise Damage(end, expected, f"the log ends here, but was synced up to {self._mark.synced}")

    def _examine_sealed(self, segment: Segment, following: int) -> None:
        loaded = self._indexes.load(segment, self._partition)
        if loaded is not None:
            facts = loaded[1]
            trusted = self._clean is not None or facts.next <= self._mark.synced
            same = facts.first == segment.first and facts.bytes == self._open_files.get(segment.path).size()
            if trusted and same:
                segment.adopt(facts)
                segment.index = None
                return
        try:
            for _ in self._scan(segment):
                pass
        except Damage as damage:
            if damage.offset != following:
                raise
            # The next segment continues here, so nothing is missing: these bytes are of a write that was undone, or of
            # a torn tail that was cut, and reappeared after a failed sync or a crash.
            self._cut_remains(segment, damage)
        if loaded is None or loaded[1] != segment.sealed_facts():
            self._note("index_rebuilt", segment.index_path, 0, 0, segment.first, "it was missing or did not match")
        self._indexes.seal(segment, self._partition)

    def _cut_remains(self, segment: Segment, damage: Damage) -> None:
        file = self._open_files.get(segment.path)
        size = file.size() - damage.position
        file.truncate(damage.position)
        file.begin_sync()()
        self._note("tail_cut", segment.path, damage.position, size, damage.offset, damage.detail)

    def _examine_last(self, segment: Segment) -> None:
        if self._files.exists(segment.index_path):
            # Once sealed, and the segments after it are gone: its index would be wrong after the next append.
            self._files.remove(segment.index_path)
            self._files.sync_directory(self.log.directory)
        if len(self.log.segments) > 1 and not self._open_files.get(segment.path).size():
            raise Damage(0, segment.first, "the segment has no checkpoint yet")
        if self._clean is not None:
            if not self._is_as_closed(segment, self._clean):
                raise _NotAsClosed
            return
        for found in self._scan(segment):
            self._last.note(found)
        segment.headers_crc = None

    def _is_as_closed(self, segment: Segment, clean: CleanEnd) -> bool:
        """Whether the headers of the last segment are those of the clean stop; bodies are checked when read."""
        file = self._open_files.get(segment.path)
        if file.size() != clean.bytes:
            return False
        crc = 0
        try:
            for found, raw in scan_headers(file, self._partition, segment.first, clean.bytes):
                crc = crc32c(raw, crc)
                self._last.note(found)
                segment.note(found.position, found.header)
        except Damage:
            return False
        segment.headers_crc = crc
        return crc == clean.headers_crc and segment.next == clean.end and self._last.is_intact(file, self._partition)

    def _scan(self, segment: Segment) -> Iterator[ScannedBatch]:
        """Every intact batch; records where the part begins that is not known to be synced."""
        file = self._open_files.get(segment.path)
        above = False
        settings = self._settings
        for found in scan(
            file, self._partition, segment.first, file.size(), settings.recover_chunk_bytes, settings.verifies
        ):
            segment.note(found.position, found.header)
            if not above and found.header.next_offset > self._mark.synced:
                above = True
                self._unsynced.append((segment, found.position))
            yield found

    # --- damage -----------------------------------------------------------------------------------

    def _is_corruption(self, damage: Damage) -> bool:
        if damage.offset < self._mark.synced or not self.log.segments:
            return True
        if damage.offset >= self._mark.syncing:
            return False
        # A record may contain the bytes of an older batch, and bytes beyond every sync may have reached the disk before
        # these: neither proves that the damaged batch was once intact.
        telling = range(damage.offset, self._mark.syncing)
        damaged = self.log.active
        if has_hole(self._open_files.get(damaged.path), self._partition, damage.position):
            # A power cut in the middle of a sync: later sectors or the next segment may have been written all the same.
            return False
        behind = [(damaged.path, damage.position)]
        behind += [(path, 0) for path in self._paths_behind(damaged)]
        return any(
            intact_batch_behind(
                self._open_files.get(path), self._partition, position, telling, self._settings.recover_chunk_bytes
            )
            for path, position in behind
        )

    def _paths_behind(self, segment: Segment) -> list[str]:
        behind = [(first, version) for first, version in self._found().items() if first > segment.first]
        return [Segment(self.log.directory, first, None, version).path for first, version in behind]

    def _report(self, damage: Damage) -> None:
        """Marks the log as damaged: nothing is cut or appended, records before the damage stay readable."""
        log = self.log
        if not log.segments:
            log.segments = (Segment(log.directory, damage.offset, Index(self._settings.index_every_bytes)),)
        path = log.active.path
        if len(log.segments) > 1 and not log.active.bytes:
            log.segments = log.segments[:-1]
        log.damage = CorruptLog(path, damage.position, damage.detail)
        log.damaged_at = damage.offset
        self._note("damage_found", path, damage.position, 0, damage.offset, damage.detail)

    def _cut(self, damage: Damage) -> None:
        """Cuts off the torn tail, later segments first, so that a crash in between leaves no gap."""
        log = self.log
        torn = log.active
        for path in reversed(self._paths_behind(torn)):
            size = self._open_files.get(path).size()
            self._remove(path)
            self._note("segment_removed", path, 0, size, damage.offset, "it follows a torn tail")
        file = self._open_files.get(torn.path)
        lost = file.size() - damage.position
        if damage.position == 0 and len(log.segments) > 1:
            self._remove(torn.path)
        else:
            file.truncate(damage.position)
            file.begin_sync()()
        self._files.sync_directory(log.directory)
        if lost:
            self._note("tail_cut", torn.path, damage.position, lost, damage.offset, damage.detail)

    # --- repair -----------------------------------------------------------------------------------

    def _remove_replaced(self) -> None:
        """Removes unfinished and replaced files of compactions. Only complete files get a name with a version."""
        found = self._found()
        listed = self._listed()
        for name in listed:
            if name.endswith(TEMPORARY_SUFFIX):
                self._names = None
                self._files.remove(f"{self.log.directory}/{name}")
        versions = [(name, match) for name in listed if (match := SEGMENT_NAME.fullmatch(name)) is not None]
        replaced = [name for name, match in versions if int(match[2] or 0) < found[int(match[1])]]
        if replaced:
            # The new names may not be durable yet; the old files are removed only when they are.
            self._files.sync_directory(self.log.directory)
        for name in replaced:
            self._remove(f"{self.log.directory}/{name}")

    def _remove_trimmed(self) -> None:
        """Removes segments that retention had removed and that reappeared after a crash."""
        for (first, version), (following, _) in pairwise(self._found().items()):
            if following <= self._mark.first:
                self._remove(Segment(self.log.directory, first, None, version).path)

    def _settle(self) -> None:
        """Rewrites what is not known to be durable: after a failed sync the system may take it for written."""
        log = self.log
        log.end = log.damaged_at if log.damaged_at is not None else log.active.next
        log.synced = log.end
        for segment, start in self._unsynced:
            file = self._open_files.get(segment.path)
            for position in range(start, segment.bytes, self._settings.recover_chunk_bytes):
                count = min(self._settings.recover_chunk_bytes, segment.bytes - position)
                file.write_at(position, file.read(position, count))
            file.begin_sync()()
        if self._clean is None and (self._unsynced or not self._mark.synced):
            self._files.sync_directory("topics")
            self._files.sync_directory(log.directory)

    def _remove(self, path: str) -> None:
        self._names = None
        self._open_files.forget(path)
        self._files.remove(path)
        index_path = path.removesuffix(".log") + ".index"
        if self._files.exists(index_path):
            self._files.remove(index_path)

    def _note(self, event: str, path: str, position: int, size: int, offset: int, detail: str) -> None:
        self.notes.append(RecoveryNote(event, path, position, size, offset, detail))


class _NotAsClosed(Exception):
    """The last segment does not match the clean-stop mark."""
