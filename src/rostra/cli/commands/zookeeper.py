"""`rostra zookeeper`: a local ZooKeeper server for demos and tests."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
rostra zookeeper start"""
START_EXAMPLES = """
rostra zookeeper start
rostra zookeeper start --port 2182 --data ./zookeeper"""


def start(
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="Port on 127.0.0.1.")] = 2181,
    data: Annotated[Path, typer.Option(metavar="DIRECTORY", help="Where the server keeps its files.")] = Path(
        ".rostra/zookeeper"
    ),
    class_path: Annotated[
        str | None,
        typer.Option(metavar="JARS", help="Jars of the server.", show_default="Debian's package, else through mvn"),
    ] = None,
) -> None:
    """Run a ZooKeeper server on this host until Ctrl-C, for demos and tests.

    It takes the jars of --class-path or ROSTRA_ZOOKEEPER_CLASS_PATH, or those of Debian's package zookeeper, or gets
    them through Maven. It needs Java.
    """
    from rostra.testing.zookeeper.server import ZookeeperServer

    # SIGTERM ends the server as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data.mkdir(parents=True, exist_ok=True)
    server = ZookeeperServer(data.resolve(), port, class_path=class_path)
    try:
        server.start()
        print(f"ZooKeeper is ready at {server.address}", flush=True)
        server.wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.sigkill()
