"""Parts have the names that the field uses: words that were given up do not come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.plain_names import crowded_packages, given_up_names, repeated_class_names, spelled


def test_no_module_class_or_public_function_has_a_name_that_was_given_up() -> None:
    assert given_up_names() == []


def test_no_class_name_is_defined_twice() -> None:
    assert repeated_class_names() == {}


def test_no_package_is_crowded() -> None:
    assert crowded_packages() == {}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("src/rostra/ledger.py", ""),
        ("tests/test_desk.py", ""),
        ("src/rostra/wire.py", "class VoteAsk: ...\n"),
        ("tools/a.py", "class A:\n    def roaming(self) -> None: ...\n"),
        ("benchmarks/people/__init__.py", ""),
    ],
)
def test_a_name_that_was_given_up_is_found(tmp_path: Path, module: str, source: str) -> None:
    (tmp_path / module).parent.mkdir(parents=True)
    (tmp_path / module).write_text(source)
    assert len(given_up_names(tmp_path)) == 1


def test_a_class_name_in_two_modules_is_found(tmp_path: Path) -> None:
    for module in ("a.py", "b.py"):
        (tmp_path / module).write_text("class Link: ...\n")
    assert repeated_class_names(tmp_path) == {"Link": ["a.py", "b.py"]}


def test_a_crowded_package_is_found(tmp_path: Path) -> None:
    package = tmp_path / "rostra"
    package.mkdir()
    for number in range(16):
        (package / f"m{number}.py").touch()
    assert crowded_packages(package) == {"rostra": 16}


def test_class_names_are_compared_in_the_spelling_of_modules() -> None:
    assert spelled("VoteAsk") == "vote_ask"
