"""Files wherever Spark can keep them, through its own file systems: a disk, HDFS, an object store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LakeFile(msgspec.Struct, frozen=True):
    path: str
    bytes: int


class LakeFileSystem:
    """One file system, the one of the path it is made for."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._hadoop: Any = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
        root = self._path(path)
        self._system: Any = root.getFileSystem(spark._jsc.hadoopConfiguration())
        self.root = str(self._system.makeQualified(root).toString())

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(path)

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def files(self, path: str) -> list[LakeFile]:
        """All files below a directory, but those that are hidden; none if it is not there."""
        if not self.exists(path):
            return []
        found: list[LakeFile] = []
        walk = self._system.listFiles(self._path(path), True)
        prefix = self._system.makeQualified(self._path(path)).toString() + "/"
        while walk.hasNext():
            status = walk.next()
            name = str(status.getPath().toString())
            within = name.removeprefix(prefix)
            if not any(part.startswith((".", "_")) for part in within.split("/")):
                found.append(LakeFile(within, int(status.getLen())))
        return sorted(found, key=lambda file: file.path)

    def names(self, path: str) -> list[str]:
        """What a directory holds, in order."""
        if not self.exists(path):
            return []
        return sorted(str(status.getPath().getName()) for status in self._system.listStatus(self._path(path)))

    def delete(self, path: str) -> None:
        self._system.delete(self._path(path), True)

    def rename(self, old: str, new: str) -> None:
        target = self._path(new)
        self._system.mkdirs(target.getParent())
        if not self._system.rename(self._path(old), target):
            raise OSError(f"{old} could not be renamed to {new}")

    def read_json(self, path: str) -> Any:
        stream = self._system.open(self._path(path))
        try:
            return json.loads(bytes(stream.readAllBytes()))
        finally:
            stream.close()

    def write_json(self, path: str, content: object) -> None:
        """A new file; the whole of it, or nothing: it gets its name last."""
        draft = f"{path}.draft"
        stream = self._system.create(self._path(draft), True)
        try:
            stream.write(bytearray(json.dumps(content).encode()))
        finally:
            stream.close()
        self.rename(draft, path)
