"""The package follows its conventions, and the checks notice when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.conventions import LINES_MAX, PACKAGE, PURE_PACKAGES, flaws_in, flaws_in_package, is_pure

PURE = Path("broker/topics/topic_requests.py")
WORLDLY = Path("runtime/disk.py")


def test_the_package_follows_its_conventions() -> None:
    assert flaws_in_package() == []


def test_every_pure_package_exists_and_is_searched() -> None:
    assert [name for name in PURE_PACKAGES if not (PACKAGE / name).is_dir()] == []


def test_the_core_of_the_client_is_pure_and_its_drivers_are_not() -> None:
    assert is_pure(Path("client/core.py"))
    assert is_pure(Path("client/core/producer/in_flight_window.py"))
    assert is_pure(Path("client/core_window.py"))
    assert not is_pure(Path("client/blocking/client.py"))


SET_ORDER = {
    "loop over a display": "for x in {1, 2}: pass",
    "loop over a call": "for x in set(y): pass",
    "loop over a frozenset": "for x in frozenset(y): pass",
    "loop over a comprehension": "for x in {a for a in y}: pass",
    "list comprehension": "r = [x for x in set(y)]",
    "dict comprehension": "r = {x: 1 for x in set(y)}",
    "escaping generator": "r = (x for x in set(y))",
    "inner loop of a comprehension": "r = [x for z in y for x in set(z)]",
    "list": "r = list({1, 2})",
    "tuple": "r = tuple(set(y))",
    "enumerate": "for i, x in enumerate(set(y)): pass",
    "zip": "r = zip(y, set(y))",
    "first by iter": "r = next(iter(set(y)))",
    "join": "r = ','.join(set(y))",
    "extend": "r = []\nr.extend(set(y))",
    "unpacking into a list": "r = [*set(y)]",
    "unpacking into names": "a, b = set(y)",
    "unpacking into arguments": "f(*set(y))",
    "yield from": "def f(y):\n    yield from set(y)",
    "text": "r = f'{set(y)}'",
    "annotated argument": "def f(peers: set[int]) -> None:\n    for p in peers: pass",
    "annotated argument, optional": "def f(peers: set[int] | None) -> None:\n    for p in peers or (): pass",
    "annotated argument, quoted": "def f(peers: 'frozenset[int]') -> None:\n    list(peers)",
    "annotated argument, abstract": "def f(peers: AbstractSet[int]) -> None:\n    list(peers)",
    "annotated name": "def f():\n    peers: set[int] = g()\n    return list(peers)",
    "assigned name": "def f(y):\n    peers = set(y)\n    return list(peers)",
    "name of an outer function": "def f(peers: set[int]):\n    def g():\n        return list(peers)\n    return g",
    "set algebra": "def f(a: set[int], b: set[int]):\n    return list(a - b)",
    "set methods": "def f(a: set[int], b: set[int]):\n    return list(a.union(b))",
    "algebra of dictionary keys": "r = list(a.keys() - b.keys())",
    "own attribute": "class A:\n    def __init__(self) -> None:\n        self.p: set[int] = set()\n"
    "    def f(self):\n        return [x for x in self.p]",
    "own attribute, not annotated": "class A:\n    def __init__(self) -> None:\n        self.p = set()\n"
    "    def f(self):\n        return [x for x in self.p]",
    "field of a struct": "class A(Struct):\n    p: frozenset[int]\ndef f(a: A):\n    return tuple(a.p)",
    "returned by a function": "def peers() -> set[int]: ...\nr = list(peers())",
    "pop": "def f(peers: set[int]):\n    return peers.pop()",
    "smallest by a key": "def f(peers: set[int]):\n    return min(peers, key=rank)",
    "smallest of a generator by a key": "def f(peers: set[int]):\n    return min((p for p in peers), key=rank)",
}


@pytest.mark.parametrize("source", SET_ORDER.values(), ids=SET_ORDER)
def test_a_pure_package_may_not_show_the_order_of_a_set(source: str) -> None:
    assert any("order of a set" in flaw.what for flaw in flaws_in(source, PURE))
    assert flaws_in(source, WORLDLY) == []


ORDER_UNSEEN = {
    "sorted": "for x in sorted(set(y)): pass",
    "sorted generator": "r = sorted(x + 1 for x in set(y))",
    "membership": "r = 1 in {1, 2}",
    "size": "r = len(set(y))",
    "any and all": "r = any(x for x in set(y)) and all(x for x in set(y))",
    "set from set": "r = {x + 1 for x in set(y)}",
    "smallest": "def f(peers: set[int]):\n    return min(peers)",
    "smallest or nothing": "r = min((x for x in set(y)), default=0)",
    "dictionary": "def f(peers: dict[int, int]):\n    for p in peers: pass\n    return list(peers)",
    "set union kept as a set": "def f(a: set[int], b: set[int]):\n    return {*a, *b}",
    "name put in order": "def f(y):\n    peers = sorted(set(y))\n    return list(peers)",
    "same name elsewhere": "def f(p: set[int]):\n    return len(p)\ndef g(p: list[int]):\n    return list(p)",
    "pop from a list": "def f(peers: list[int]):\n    return peers.pop()",
    "flags": "def f(a: int, b: int):\n    return list(range(a | b))",
}


@pytest.mark.parametrize("source", ORDER_UNSEEN.values(), ids=ORDER_UNSEEN)
def test_a_set_whose_order_stays_unseen_is_welcome(source: str) -> None:
    assert flaws_in(source, PURE) == []


IMPURE = {
    "open": "open('f')",
    "open by its full name": "import builtins\nbuiltins.open('f')",
    "print": "print(1)",
    "hash": "r = hash('a')",
    "id": "r = id(object())",
    "clock": "import time",
    "clock inside a function": "def f():\n    from time import monotonic",
    "calendar": "from datetime import datetime",
    "loop": "import asyncio.events",
    "threads": "from concurrent.futures import ThreadPoolExecutor",
    "paths": "import os.path",
    "random module": "import random",
    "random function": "from random import randint",
    "generator made": "from random import Random\nr = Random(1)",
    "generator made under another name": "from random import Random as R\nr = R(1)",
    "generator made through a variable": "from random import Random\nmake = Random\nr = make()",
    "generator as a default": "from random import Random\ndef f(r: Random = Random()) -> None: ...",
}


@pytest.mark.parametrize("source", IMPURE.values(), ids=IMPURE)
def test_a_pure_package_may_not_touch_the_world(source: str) -> None:
    assert flaws_in(source, PURE) != []
    assert flaws_in(source, WORLDLY) == []


def test_a_generator_may_be_handed_into_a_pure_package() -> None:
    source = (
        "from random import Random\n"
        "def f(chance: Random | None) -> Random: ...\n"
        "class A:\n    chance: Random\n    def g(self) -> float:\n        return self.chance.random()\n"
    )
    assert flaws_in(source, PURE) == []


UNSAFE = {
    "eval": "eval('1')",
    "exec": "exec('1')",
    "hidden import": "__import__('os')",
    "pickle": "import pickle",
    "pickle inside a function": "def f():\n    from pickle import loads",
    "marshal": "from marshal import loads",
    "shelve": "import shelve",
}


@pytest.mark.parametrize("source", UNSAFE.values(), ids=UNSAFE)
@pytest.mark.parametrize("module", [PURE, WORLDLY], ids=["pure", "worldly"])
def test_no_package_may_use_an_unsafe_loader(source: str, module: Path) -> None:
    assert flaws_in(source, module) != []


VAGUE = {
    "class": "class TopicManager: ...",
    "function": "def handle_publish(): ...",
    "private function": "def _handle_publish(): ...",
    "coroutine": "async def help_helper(): ...",
    "argument": "def f(helper: int) -> None: ...",
    "variable": "file_utils = 1",
    "attribute": "class A:\n    def f(self):\n        self.manager = 1",
    "alias": "import msgspec as utils",
}


@pytest.mark.parametrize("source", VAGUE.values(), ids=VAGUE)
def test_a_vague_name_is_refused(source: str) -> None:
    assert any("is vague" in flaw.what for flaw in flaws_in(source, WORLDLY))


def test_a_module_whose_file_name_says_nothing_is_refused() -> None:
    assert flaws_in("", Path("runtime/utils.py")) != []
    assert flaws_in("", Path("runtime/utils/disk.py")) != []


def test_names_of_other_libraries_may_be_used() -> None:
    source = (
        "from contextlib import contextmanager\n@contextmanager\ndef f():\n    file_handle = 1\n    yield file_handle"
    )
    assert flaws_in(source, WORLDLY) == []


def test_a_module_that_has_grown_too_long_is_refused() -> None:
    assert flaws_in("x = 1\n" * LINES_MAX, WORLDLY) == []
    assert flaws_in("x = 1\n" * (LINES_MAX + 1), WORLDLY) != []
