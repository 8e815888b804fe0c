"""Small programs that start others a little differently than Spark would."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def launcher(home: str, name: str, script: str) -> Path:
    """A program of this user, `bin/name` below a directory of that name; repeated calls return the same path."""
    place = Path(tempfile.gettempdir()) / f"{home}-{os.getuid()}"
    (place / "bin").mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        place = Path(tempfile.mkdtemp(prefix=f"{home}-"))
        (place / "bin").mkdir()
    program = place / "bin" / name
    if not program.exists() or program.read_text() != script:
        written = program.with_name(f"{name}-{os.getpid()}")
        written.write_text(script)
        written.chmod(0o755)
        # Others may be starting at the same time: the name always stands for a whole file.
        written.replace(program)
    return program
