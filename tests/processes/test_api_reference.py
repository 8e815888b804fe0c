"""The API reference has every public name, and all of its examples run."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import rostra
import rostra.blocking
import rostra.spark
import rostra.testing
from rostra.testing.embedded import EmbeddedNode
from tools import api_docs

MODULES = (  # examples of Spark run in tests/spark/test_example.py
    "asyncio_client",
    "blocking_client",
    "testing_nodes",
)
EXAMPLES = [(module, example.function) for module in MODULES for example in api_docs.examples(module)]


def loaded(module: str) -> ModuleType:
    path = api_docs.EXAMPLES / f"{module}.py"
    spec = importlib.util.spec_from_file_location(f"api_example_{module}", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with rostra.testing.node(fsync="never") as started:
        yield started


@pytest.mark.parametrize(("module", "function"), EXAMPLES)
def test_an_example_of_the_reference_runs(
    module: str, function: str, node: EmbeddedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    example = getattr(loaded(module), function)
    if "address" not in inspect.signature(example).parameters:
        example()
    elif inspect.iscoroutinefunction(example):
        asyncio.run(example(node.address))
    else:
        example(node.address)
    assert "any other error" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("public", "module", "prefix"),
    [
        (rostra, "asyncio_client", "rostra"),
        (rostra.blocking, "blocking_client", "rostra.blocking"),
        (rostra.testing, "testing_nodes", "rostra.testing"),
        (rostra.spark, "spark_topics", "rostra.spark"),
    ],
)
def test_every_public_name_has_an_example_that_uses_it(public: ModuleType, module: str, prefix: str) -> None:
    examples = api_docs.examples(module)
    shown = {name for example in examples for name in example.names if name in public.__all__}
    assert shown | {"blocking"} >= set(public.__all__)
    for example in examples:
        for name in shown & set(example.names):
            assert re.search(rf"\b{re.escape(prefix)}\.{name}\b", example.source), (example.function, name)


def test_every_error_is_in_the_reference() -> None:
    page = api_docs.PAGE.read_text(encoding="utf-8")
    raised = [kind for kind in rostra.RostraError.kinds.values() if "__dataclass_fields__" in kind.__dict__]
    assert [kind.__name__ for kind in raised if f"| `{kind.__name__}` |" not in page] == []


def test_the_reference_is_up_to_date() -> None:
    told = Path(api_docs.PAGE).read_text(encoding="utf-8")
    assert told == api_docs.page(), "python -m tools.api_docs writes it"
