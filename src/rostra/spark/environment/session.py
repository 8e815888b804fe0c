"""A Spark session with what reading topics needs, and nothing more."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rostra.errors import InvalidSetting, LibraryMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
LOOPBACK = "127.0.0.1"
STDERR = 2
SHORT_WAY = "spark.python.unix.domain.socket.enabled"
"""Between Java and its Python workers, instead of TCP: a read of a topic is an eighth faster."""
SOCKET_DIRECTORY_CHARACTERS_MAX = 60
"""The system allows a little over a hundred for the whole name of such a socket."""
SMALL = {"spark.sql.shuffle.partitions": "4"}
"""For programs of ours on one machine. Spark's own 200 are for clusters: on a laptop each batch of a stream that counts
takes half a minute with them."""


def session(
    app: str = "rostra", *, master: str | None = None, conf: Mapping[str, str] | None = None, ui: bool = False
) -> SparkSession:
    """The session that is there, or a new one; without a master it is `local[*]`.

    >>> spark = rostra.spark.session(conf={"spark.driver.memory": "4g"})  # doctest: +SKIP
    """
    there = running()
    if there is not None:
        # Of ours it is the only setting that can still be made; of others, as with Spark itself, those that can be.
        for name, value in {PUSH_DOWN: "true", **(conf or {})}.items():
            if there.conf.isModifiable(name):
                there.conf.set(name, value)
        return there
    from pyspark.sql import SparkSession

    from rostra.spark.environment.java import provide_java
    from rostra.spark.environment.python import provide_python

    chosen = {**settings(master, ui=ui), **(conf or {})}
    provide_java()
    provide_python(here=chosen.get("spark.master", "").startswith("local"))
    builder = SparkSession.builder.appName(app)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with _unheard() if chosen.get("spark.log.level") == "OFF" else nullcontext():
        return builder.getOrCreate()


@contextmanager
def _unheard() -> Iterator[None]:
    """Of what Java says before anybody can tell it to be silent, nothing is shown unless the start fails."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said:
        before = os.dup(STDERR)
        os.dup2(said.fileno(), STDERR)
        try:
            yield
        except BaseException:
            said.seek(0)
            os.write(before, said.read())
            raise
        finally:
            os.dup2(before, STDERR)
            os.close(before)


def running() -> SparkSession | None:
    """The session that is there."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise LibraryMissing("pyspark", "spark") from None
    there: SparkSession | None = SparkSession.getActiveSession()
    return there


CONNECT = "pipelines run in Spark's driver, which Spark Connect has elsewhere; name another master, such as local[*]"


def check_master(master: str | None) -> None:
    """InvalidSetting for Spark Connect, before anything is started."""
    if (master or "").startswith("sc://"):
        raise InvalidSetting("master", CONNECT)
    if master is None and os.environ.get("SPARK_REMOTE"):
        raise InvalidSetting("SPARK_REMOTE", CONNECT)


def check_classic(spark: SparkSession) -> None:
    """InvalidSetting for a session of Spark Connect."""
    if ".connect." in type(spark).__module__:
        raise InvalidSetting("spark", CONNECT)


def settings(master: str | None = None, *, ui: bool = False) -> dict[str, str]:
    """What a new session is made with."""
    chosen = {PUSH_DOWN: "true", "spark.ui.enabled": str(ui).lower()}
    if master is None and not os.environ.get("MASTER") and not os.environ.get("SPARK_REMOTE"):
        master = "local[*]"
    if master is not None:
        chosen["spark.master"] = master
    if master is not None and master.startswith("local"):
        # A laptop's own name may lead nowhere, and nobody else has to reach the driver.
        chosen |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        if hasattr(socket, "AF_UNIX") and len(tempfile.gettempdir()) <= SOCKET_DIRECTORY_CHARACTERS_MAX:
            chosen[SHORT_WAY] = "true"
    return chosen
