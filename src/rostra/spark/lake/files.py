"""Files of a lake and of the bookkeeping beside it: on a disk, or wherever Spark can keep them."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import msgspec

from rostra.errors import InvalidSetting
from rostra.spark.environment.session import check_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = {
    "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfs": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26",
}
"""What Spark's own package leaves out."""


class LakeFile(msgspec.Struct, frozen=True):
    path: str
    """Within the directory that was asked for."""
    bytes: int


class LakeFiles(Protocol):
    """The files of one lake. Paths are whole, and begin with `root` or with what stands beside it."""

    root: str

    def uri(self, path: str) -> str:
        """As Spark names it."""
        ...

    def on_disk(self, path: str) -> str | None:
        """As the system names it; None where only Spark knows how to get there."""
        ...

    def size(self, path: str) -> int | None:
        """None if it is not there."""
        ...

    def files(self, path: str) -> list[LakeFile]:
        """All below a directory, in order, but those that are hidden; none if it is not there."""
        ...

    def names(self, path: str) -> list[str]:
        """What a directory holds, in order."""
        ...

    def delete(self, path: str) -> None:
        """With all that is below it; nothing happens if it is not there."""
        ...

    def move(self, old: str, new: str) -> None: ...

    def read(self, path: str) -> bytes: ...

    def create(self, path: str, content: bytes) -> None:
        """FileExistsError if it is there: of two who create it one succeeds."""
        ...


class LocalFiles:
    """On a disk, without Spark."""

    def __init__(self, root: str | Path) -> None:
        self.root = str(root)

    def uri(self, path: str) -> str:
        return f"file://{path}"

    def on_disk(self, path: str) -> str | None:
        return path

    def size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def files(self, path: str) -> list[LakeFile]:
        found: list[LakeFile] = []
        for folder, folders, names in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            for name in names:
                whole = os.path.join(folder, name)
                if not name.startswith((".", "_")) and (size := self.size(whole)) is not None:
                    found.append(LakeFile(os.path.relpath(whole, path), size))
        return sorted(found, key=lambda file: file.path)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def delete(self, path: str) -> None:
        if os.path.isdir(path):
            # A task whose attempt does not count may still write there.
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)

    def move(self, old: str, new: str) -> None:
        os.makedirs(os.path.dirname(new), exist_ok=True)
        os.rename(old, new)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def create(self, path: str, content: bytes) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        draft = Path(f"{path}.{uuid4().hex}.draft")
        draft.write_bytes(content)
        try:
            # Of two links of the same name one is made, and the whole content is there with it.
            os.link(draft, path)
        finally:
            draft.unlink()


class HadoopFiles:
    """Through the file systems of Spark: HDFS, an object store with its jar."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._hadoop: Any = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
        self._system: Any = self._path(root).getFileSystem(spark._jsc.hadoopConfiguration())
        self.root = root

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(path)

    def uri(self, path: str) -> str:
        return path

    def on_disk(self, path: str) -> str | None:
        return None

    def size(self, path: str) -> int | None:
        if not self._system.exists(self._path(path)):
            return None
        return int(self._system.getFileStatus(self._path(path)).getLen())

    def files(self, path: str) -> list[LakeFile]:
        if self.size(path) is None:
            return []
        found: list[LakeFile] = []
        walk = self._system.listFiles(self._path(path), True)
        prefix = self._system.makeQualified(self._path(path)).toString() + "/"
        while walk.hasNext():
            status = walk.next()
            within = str(status.getPath().toString()).removeprefix(prefix)
            if not any(part.startswith((".", "_")) for part in within.split("/")):
                found.append(LakeFile(within, int(status.getLen())))
        return sorted(found, key=lambda file: file.path)

    def names(self, path: str) -> list[str]:
        if self.size(path) is None:
            return []
        return sorted(str(status.getPath().getName()) for status in self._system.listStatus(self._path(path)))

    def delete(self, path: str) -> None:
        self._system.delete(self._path(path), True)

    def move(self, old: str, new: str) -> None:
        target = self._path(new)
        self._system.mkdirs(target.getParent())
        if not self._system.rename(self._path(old), target):
            raise OSError(f"{old} could not be renamed to {new}")

    def read(self, path: str) -> bytes:
        stream = self._system.open(self._path(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def create(self, path: str, content: bytes) -> None:
        from py4j.protocol import Py4JJavaError

        try:
            stream = self._system.create(self._path(path), False)
        except Py4JJavaError as error:
            if "AlreadyExists" in str(error.java_exception.getClass().getName()):
                raise FileExistsError(path) from None
            raise
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()


def files_of(spark: SparkSession, path: str) -> LakeFiles:
    """The files of a lake; InvalidSetting where Spark has no file system for it."""
    check_classic(spark)
    root = _qualified(spark, path)
    found = re.fullmatch(r"file:(?://)?(/.*?)/*", root)
    return LocalFiles(found[1]) if found else HadoopFiles(spark, root.rstrip("/"))


def _qualified(spark: SparkSession, path: str) -> str:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import IllegalArgumentException

    jvm: Any = spark._jvm
    scheme = path.partition(":")[0] if ":" in path else ""
    try:
        place = jvm.org.apache.hadoop.fs.Path(path)
        system = place.getFileSystem(spark._jsc.hadoopConfiguration())
        return str(system.makeQualified(place).toString())
    except IllegalArgumentException as error:
        raise InvalidSetting("lake", f"{path!r} cannot be used: {error}") from None
    except Py4JJavaError as error:
        java = error.java_exception
        kind, said = str(java.getClass().getSimpleName()), str(java.getMessage()).splitlines()[0]
        if kind != "UnsupportedFileSystemException" and "ClassNotFound" not in f"{kind} {said}":
            raise InvalidSetting("lake", f"{path} cannot be used: {said}") from None
        hadoop = str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())
        jar = JARS.get(scheme, "").format(hadoop=hadoop)
        wanted = f"spark.jars.packages={jar}" if jar else "spark.jars=… for the jar that has it"
        other = "; write s3a: for S3" if scheme in ("s3", "s3n") else ""
        raise InvalidSetting("lake", f"Spark has no file system for {scheme}: here; set {wanted}{other}") from None
