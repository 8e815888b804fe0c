"""A machine without Java gets one that Spark can start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rostra.spark.environment.java import provide_java


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.usefixtures("without_java")
def test_the_java_that_is_provided_starts_with_the_arguments_that_spark_gives(tmp_path: Path) -> None:
    home = provide_java()
    assert home is not None and os.environ["JAVA_HOME"] == home
    assert Path(home).is_relative_to(tmp_path)
    arguments = ["--add-modules=jdk.incubator.vector", "-Dname=two words", "-XshowSettings:properties", "-version"]
    ran = subprocess.run(
        [f"{home}/bin/java", *arguments], capture_output=True, text=True, timeout=60, check=True, env={"PATH": "/bin"}
    )
    assert "name = two words" in ran.stderr
    assert provide_java() is None, "now there is one"


def test_a_java_that_is_there_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert provide_java() is None
    assert os.environ["JAVA_HOME"] == str(tmp_path)
