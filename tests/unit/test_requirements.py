"""The numbered statements are readable, and the count of what was proved is strict."""

from __future__ import annotations

from pathlib import Path

import pytest

from rostra.fabric.registry import FABRICS
from tools.requirement_plugin import AREAS, fabrics_of
from tools.requirements import FABRIC_NEUTRAL, ROOT, Clause, Evidence, Proofs, in_scope, judge, read_statements
from tools.requirements_report import cell, report, summary

STATEMENTS = {"CM-1": "one", "CM-2": "two", "RF-1": "three", "HR-1": "four"}
PARTS = """
[CM-1.any]
words = "of every fabric alike"
[CM-1.each]
deeds = "of each fabric"
more = "of most"
[CM-1.except.flood]
more = "it has none"
[CM-2.each]
whole = "all of it"
"""


@pytest.fixture
def proofs(tmp_path: Path) -> Proofs:
    return proofs_from(tmp_path, PARTS)


def proofs_from(folder: Path, text: str) -> Proofs:
    (folder / "proofs.toml").write_text(text)
    return Proofs.read(STATEMENTS, ["raft", "flood"], folder)


def test_every_page_contributes_numbered_statements() -> None:
    letters = {number.partition("-")[0] for number in read_statements()}
    assert letters == {"CM", "FL", "HR", "PL", "RF", "SC", "SE", "ZK"}


def test_numbers_are_listed_in_counting_order() -> None:
    common = [number for number in read_statements() if number.startswith("CM")]
    assert common == [f"CM-{n}" for n in range(1, 28)]


def test_every_common_and_pipeline_number_says_what_depends_on_the_fabric() -> None:
    found = Proofs.read(read_statements(), list(FABRICS))
    shared = [number for number in found.parts if number.startswith(("CM-", "PL-"))]
    assert [number for number in shared if not all(part.name for part in found.parts[number])] == []


def test_parts_of_an_unknown_number_or_under_an_unknown_word_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="CM-9"):
        proofs_from(tmp_path, '[CM-9.any]\nx = "y"')
    with pytest.raises(ValueError, match="known are any"):
        proofs_from(tmp_path, '[CM-1.some]\nx = "y"')
    with pytest.raises(ValueError, match="CM-1:z"):
        proofs_from(tmp_path, '[CM-1.each]\nx = "y"\n[CM-1.except.flood]\nz = "no"')


def test_a_part_that_only_skipped_or_expected_failures_carry_is_not_proved() -> None:
    evidence, part = Evidence(), Clause("CM-5", "x", "", (FABRIC_NEUTRAL,))
    for outcome in ("skipped", "xfailed", "xpassed"):
        evidence.record("CM-5:x", f"test_{outcome}", outcome)
    assert not evidence.proved(part, FABRIC_NEUTRAL)


def test_one_failing_test_disproves_a_part_that_another_proves(proofs: Proofs) -> None:
    evidence = Evidence()
    evidence.record("CM-2", "test_a", "passed", ["raft", "flood"])
    assert judge("CM-2", proofs, evidence).done
    evidence.record("CM-2:whole", "test_b", "failed", ["flood"])
    verdict = judge("CM-2", proofs, evidence)
    assert not verdict.done
    assert (cell(verdict, "raft"), cell(verdict, "flood")) == ("proved", "FAILED")


def test_a_number_is_done_when_every_part_passed_on_every_fabric_that_promises_it(proofs: Proofs) -> None:
    evidence = Evidence()
    evidence.record("CM-1:words", "test_a", "passed")
    evidence.record("CM-1:deeds", "test_b", "passed", ["raft"])
    evidence.record("CM-1:more", "test_c", "passed", ["raft"])
    half = judge("CM-1", proofs, evidence)
    assert (cell(half, "raft"), cell(half, "flood"), half.done) == ("proved", "1 of 2", False)
    assert half.lacking == {"raft": (), "flood": ("deeds",)}
    evidence.record("CM-1:deeds", "test_b[flood]", "passed", ["flood"])
    assert judge("CM-1", proofs, evidence).done


def test_a_test_without_a_fabric_proves_nothing_about_one(proofs: Proofs) -> None:
    evidence = Evidence()
    evidence.record("CM-2", "test_a", "passed")
    assert not judge("CM-2", proofs, evidence).begun


def test_a_number_of_one_fabric_is_done_when_it_passed_there(proofs: Proofs) -> None:
    evidence = Evidence()
    evidence.record("RF-1", "test_a", "passed", ["flood"])
    assert not judge("RF-1", proofs, evidence).done
    evidence.record("RF-1", "test_b", "passed", ["raft"])
    verdict = judge("RF-1", proofs, evidence)
    assert (cell(verdict, "raft"), cell(verdict, "flood"), verdict.done) == ("proved", "-", True)


def test_a_number_of_a_fabric_that_is_not_built_is_missing(proofs: Proofs) -> None:
    evidence = Evidence()
    evidence.record("HR-1", "test_a", "passed", ["raft"])
    assert not judge("HR-1", proofs, evidence).done
    lines, _ = report(STATEMENTS, proofs, evidence, ["HR"])
    assert "        needs what is not built yet: hashring" in lines


def test_a_scope_means_whole_letters_or_single_numbers() -> None:
    assert in_scope("CM-5", ["CM"])
    assert in_scope("CM-5", ["RF", "CM-5"])
    assert not in_scope("CM-5", ["CM-55", "C", "RF"])


def test_the_report_has_a_column_per_fabric_and_names_what_is_missing_within_the_scope(proofs: Proofs) -> None:
    evidence = Evidence()
    evidence.record("CM-1:deeds", "test_a[raft-seed1]", "passed", ["raft"])
    evidence.record("CM-1:deeds", "test_a[raft-seed2]", "passed", ["raft"])
    evidence.record("CM-2", "test_b", "passed", ["raft", "flood"])
    lines, missing = report(STATEMENTS, proofs, evidence, ["CM"])
    assert missing == ["CM-1"]
    assert lines == [
        "number  raft      flood     statement",
        "CM-1    1 of 3    none      one",
        "        lacks on raft: words, more",
        "        lacks on flood: words, deeds",
        "        not promised in full by flood: it has none",
        "        test_a (deeds): 2 passed on raft",
        "CM-2    proved    proved    two",
        "        test_b: 1 passed on flood, 1 passed on raft",
    ]
    verdicts = [judge(number, proofs, evidence) for number in STATEMENTS]
    assert summary(verdicts)[0] == "CM: 1 of 2 proved; missing: CM-1"


def test_evidence_is_read_as_it_was_written(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.record("CM-10:x", "test_a", "passed", ["raft"])
    evidence.record("CM-9", "test_b", "failed")
    evidence.write(tmp_path / "results.json")
    read = Evidence.read(tmp_path / "results.json")
    assert read == evidence and list(read.tests) == ["CM-9", "CM-10:x"]


class Setting:
    fabric = "flood"


def test_the_fabric_of_a_test_is_among_its_parameters_or_that_of_its_area() -> None:
    assert fabrics_of("tests/contract/test_x.py::test_y[flood-seed1]", [Setting(), 7]) == {"flood"}
    assert fabrics_of("tests/processes/test_x.py::test_y[flood]", ["flood", "asyncio"]) == {"flood"}
    assert fabrics_of("tests/processes/test_x.py::test_y", []) == {"raft"}
    assert fabrics_of("tests/unit/flood/test_x.py::test_y[4]", [4]) == {"flood"}
    assert fabrics_of("tests/simulation/test_flood_seeds.py::test_y", []) == {"flood"}
    assert fabrics_of("tests/unit/client/test_x.py::test_y", []) == frozenset()


def test_every_area_is_there() -> None:
    assert [area for area in AREAS if not (ROOT / area).exists()] == []
