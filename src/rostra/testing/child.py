"""What a `ProcessNode` runs: the command line of Rostra, bound to the life of the process that started it.

Stdin is a pipe from the parent. It ends when the parent does, in whatever way, and takes this process along.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from threading import Thread


def _follow_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Thread(target=_follow_parent, daemon=True).start()
    sys.argv[0] = "rostra"
    runpy.run_module("rostra", run_name="__main__", alter_sys=True)
