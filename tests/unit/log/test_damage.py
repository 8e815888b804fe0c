"""Damage of every kind in every file: a start and its reads end in the truth or in a typed error."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest

from rostra.errors import CorruptLog
from rostra.log.files import Files
from rostra.log.store import Store
from rostra.model.batch import read_header
from tests.unit.log.batches import DIRECTORY, PARTITION, SMALL, batch, copied, disk_of, faulty, opened, split, sync

BLOCK = 64


class Scene:
    """A disk as a node left it, and the batches that any start must give back or report."""

    def __init__(self, seed: int, *, clean: bool) -> None:
        random = Random(seed)
        files = faulty(seed)
        store = opened(files)
        self.batches: dict[int, bytes] = {}
        for round_number in range(6):
            for _ in range(4):
                end = store.end(PARTITION)
                checkpoint = random.random() < 0.2
                value = random.randbytes(random.randrange(1, 60))
                made = bytes(
                    batch(end, 1 if checkpoint else random.randrange(1, 9), checkpoint=checkpoint, value=value)
                )
                self.batches[end] = made
                store.append(PARTITION, [made])
            if round_number < 5:
                sync(store)
            if round_number == 4:
                self.known_end = store.end(PARTITION)
                mark = store.begin_mark()
                mark.run()
                mark.finish()
        if clean:
            self.known_end = store.end(PARTITION)
        store.begin_persist("vote", b"node 7").run()
        store.close(clean=clean)
        self.contents = copied(files)
        self.segments = sorted(path for path in self.contents if path.endswith(".log"))


def damaged(contents: dict[str, bytes], random: Random, kinds: Counter[str]) -> dict[str, bytes]:
    path = random.choice(sorted(contents))
    content = bytearray(contents[path])
    # The journal ends in zeros that nobody has written yet; damage where something is.
    size = max(len(content.rstrip(b"\0")), 1)
    at, other = random.randrange(size), random.randrange(size)
    kind = random.choice(("truncate", "flip", "zeros", "garbage", "duplicate", "swap", "delete", "insert", "grow"))
    kinds[kind] += 1
    match kind:
        case "truncate":
            del content[at:]
        case "flip":
            content[at : at + 1] = bytes([(content[at] if content else 0) ^ 1 << random.randrange(8)])
        case "zeros":
            content[at : at + BLOCK] = bytes(len(content[at : at + BLOCK]))
        case "garbage":
            content[at : at + BLOCK] = random.randbytes(len(content[at : at + BLOCK]))
        case "duplicate":
            block = content[at : at + BLOCK]
            content[other : other + len(block)] = block
        case "swap":
            at, other = at - at % BLOCK, other - other % BLOCK
            one, two = content[at : at + BLOCK], content[other : other + BLOCK]
            if len(one) == len(two):
                content[at : at + BLOCK], content[other : other + BLOCK] = two, one
        case "insert":
            content[at:at] = random.randbytes(random.randrange(1, 40))
        case "grow":
            content += random.randbytes(random.randrange(1, 200))
        case _:
            return {name: kept for name, kept in contents.items() if name != path}
    return {**contents, path: bytes(content)}


def check(scene: Scene, files: Files, outcomes: Counter[str]) -> None:
    store = Store(files, SMALL)
    try:
        recovery = store.recover()
    except CorruptLog:
        outcomes["not started"] += 1
        return
    assert recovery.hard.get("vote", b"node 7") == b"node 7"
    (facts,) = recovery.logs
    served, refused = served_by(scene, store, facts.end)
    if facts.damaged_at is not None:
        outcomes["damage found at start"] += 1
    elif refused:
        outcomes["damage found by a read"] += 1
    else:
        outcomes["served"] += 1
        missing = [base for base in scene.batches if base < scene.known_end and base not in served]
        assert not missing, "synced records are gone, and nobody says so"
    assert store.find_last(PARTITION, 1, facts.first) >= 0


def served_by(scene: Scene, store: Store, end: int) -> tuple[set[int], bool]:
    """The base offsets of the batches that can be read, all of them as they were written."""
    served: set[int] = set()
    refused = False
    for base, made in scene.batches.items():
        if base >= end:
            continue
        try:
            chunk = store.read(PARTITION, base, end, 500)
        except CorruptLog:
            refused = True
            continue
        found = split(chunk.batches)
        assert found[0] == made
        for one in found:
            assert scene.batches[read_header(one).base_offset] == one
            served.add(read_header(one).base_offset)
    return served, refused


def campaign(cases: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    kinds: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    scenes = [Scene(seed + number, clean=number % 2 == 0) for number in range(8)]
    for case in range(cases):
        random = Random(seed * 1_000_003 + case)
        scene = random.choice(scenes)
        contents = damaged(scene.contents, random, kinds)
        try:
            check(scene, disk_of(contents), outcomes)
        except Exception as failure:
            failure.add_note(f"campaign seed {seed}, case {case}")
            raise
    return kinds, outcomes


@pytest.mark.requirement("CM-13:checksums", "CM-13:reported")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_damaged_files_end_in_the_truth_or_in_a_typed_error(seed: int) -> None:
    kinds, outcomes = campaign(1000, seed)
    assert min(kinds.values()) > 50
    assert all(outcomes[outcome] > 20 for outcome in ("not started", "damage found at start", "served"))
    assert outcomes["damage found by a read"] > 5


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 200))
def test_a_hundred_thousand_damages(seed: int) -> None:
    campaign(1000, seed)


def test_the_scenes_are_worth_damaging() -> None:
    scene = Scene(1, clean=False)
    assert len(scene.segments) > 2
    assert all(path.startswith(DIRECTORY) for path in scene.segments)
    assert 0 < scene.known_end < max(scene.batches)
    assert os.path.basename(scene.segments[0]) == f"{0:020}.log"
