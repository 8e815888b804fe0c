"""The numbered statements are readable, and the count of what was proved is strict."""

from __future__ import annotations

from tools.requirements import Evidence, in_scope, read_statements, report


def test_every_page_contributes_numbered_statements() -> None:
    letters = {number.partition("-")[0] for number in read_statements()}
    assert letters == {"CM", "FL", "HR", "PL", "RF", "SC", "SE", "ZK"}


def test_numbers_are_listed_in_counting_order() -> None:
    common = [number for number in read_statements() if number.startswith("CM")]
    assert common == [f"CM-{n}" for n in range(1, 28)]


def test_a_number_that_only_skipped_or_expected_failures_carry_is_not_proved() -> None:
    evidence = Evidence()
    for outcome in ("skipped", "xfailed", "xpassed"):
        evidence.record("CM-5", f"test_{outcome}", outcome)
    assert not evidence.proved("CM-5")


def test_one_failing_test_disproves_a_number_that_another_proves() -> None:
    evidence = Evidence()
    evidence.record("CM-5", "test_a", "passed")
    assert evidence.proved("CM-5")
    evidence.record("CM-5", "test_b", "failed")
    assert not evidence.proved("CM-5")


def test_a_scope_means_whole_letters_or_single_numbers() -> None:
    assert in_scope("CM-5", ["CM"])
    assert in_scope("CM-5", ["RF", "CM-5"])
    assert not in_scope("CM-5", ["CM-55", "C", "RF"])


def test_the_report_names_what_is_missing_within_the_scope_only() -> None:
    evidence = Evidence()
    evidence.record("CM-1", "test_a", "passed")
    lines, missing = report({"CM-1": "one", "CM-2": "two", "RF-1": "three"}, evidence, ["CM"])
    assert missing == ["CM-2"]
    assert any("test_a" in line for line in lines)
    assert not any("RF-1" in line for line in lines)
