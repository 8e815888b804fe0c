"""The program of a `ProcessNode`: the command `rostra`, which ends when its parent process ends.

Stdin is a pipe from the parent; its end of file means that the parent has ended, and this process kills itself.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from threading import Thread


def _exit_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Thread(target=_exit_with_parent, daemon=True).start()
    sys.argv[0] = "rostra"
    runpy.run_module("rostra", run_name="__main__", alter_sys=True)
