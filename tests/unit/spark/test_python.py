"""The Python that Spark starts has Spark's modules as they are installed, and everything else that is on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from rostra.spark.environment.python import provide_python

ARCHIVES = Path(pyspark.__file__).parent / "python" / "lib"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    del os.environ["PYSPARK_PYTHON"]


def path_seen_by(python: str, path: str) -> list[str]:
    program = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.prefix); print(sys.argv[1])"
    ran = subprocess.run(
        [python, "-c", program, "two words"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "/bin", "PYTHONPATH": path},
    )
    return ran.stdout.splitlines()


def test_spark_s_archives_are_left_out_and_all_else_stays() -> None:
    provide_python(here=True)
    path = f"{ARCHIVES}/pyspark.zip:{ARCHIVES}/py4j-0-src.zip:/some/other.zip:/two words/here"
    seen = path_seen_by(os.environ["PYSPARK_PYTHON"], path)
    assert seen == ["/some/other.zip:/two words/here", sys.prefix, "two words"]


def test_spark_s_own_modules_are_found_where_they_are_installed() -> None:
    provide_python(here=True)
    ran = subprocess.run(
        [os.environ["PYSPARK_PYTHON"], "-c", "import pyspark, py4j; print(pyspark.__file__)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "/bin", "PYTHONPATH": f"{ARCHIVES}/pyspark.zip"},
    )
    assert ran.stdout.strip() == pyspark.__file__


def test_elsewhere_the_program_is_not_there_to_be_started() -> None:
    provide_python(here=False)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_session_elsewhere_after_one_here_does_not_inherit_its_python() -> None:
    provide_python(here=True)
    provide_python(here=False)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_where_temporary_files_may_not_be_executed_the_python_that_runs_is_started(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "none", tmp_path], check=True)
    try:
        provide_python(here=True)
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_another_spark_brings_its_own_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    provide_python(here=True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_what_somebody_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/another")
    provide_python(here=True)
    assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/another"
