"""Files as Spark reaches them: any file system that Hadoop knows, through the driver's JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse
from uuid import uuid4

from highwater.log_storage.durable import fsync_directory, write_whole
from highwater.rpc.server import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class FileStatus:
    path: str  # below the directory that was listed
    size_bytes: int


class HadoopFiles:
    """Paths are absolute, or URIs. Everything raises `Py4JJavaError` where the file system fails."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        """`root` says which file system."""
        from py4j.java_gateway import is_instance_of

        context = spark.sparkContext
        self._hadoop: Any = context._jvm.org.apache.hadoop.fs
        system = self._hadoop.Path(root).getFileSystem(context._jsc.hadoopConfiguration())
        if is_instance_of(context._gateway, system, "org.apache.hadoop.fs.ChecksumFileSystem"):
            # Beside each file it would keep one with its checksum, which some readers take for data.
            system = system.getRawFileSystem()
        self._system = system

    def qualified(self, path: str) -> str:
        """The path with its scheme, as Spark takes it."""
        return str(self._system.makeQualified(self._path(path)).toString())

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def names(self, directory: str) -> list[str]:
        """What is in the directory itself, sorted; nothing where there is none."""
        if not self.exists(directory):
            return []
        return sorted(str(found.getPath().getName()) for found in self._system.listStatus(self._path(directory)))

    def files(self, directory: str) -> Iterator[FileStatus]:
        """Every file below the directory, but for those with a part of their path hidden (`_` or `.` in front)."""
        if not self.exists(directory):
            return
        above = len(self.qualified(directory)) + 1
        found = self._system.listFiles(self._path(directory), True)
        while found.hasNext():
            status = found.next()
            path = str(status.getPath().toString())[above:]
            if not any(part.startswith(("_", ".")) for part in path.split("/")):
                yield FileStatus(path, int(status.getLen()))

    def read(self, path: str) -> bytes:
        stream = self._system.open(self._path(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, path: str, content: bytes) -> None:
        """A new file, which has its name only when it is whole."""
        partial = f"{path}.partial"
        self.overwrite(partial, content)
        self.move(partial, path)

    def write_new(self, path: str, content: bytes) -> bool:
        """The same; False where there is such a file, which stays as it is."""
        local = urlparse(self.qualified(path))
        if local.scheme == "file":
            return write_new_file(Path(unquote(local.path)), content)
        if self.exists(path):
            return False
        partial = f"{path}.{uuid4().hex}.partial"
        self.overwrite(partial, content)
        if self._system.rename(self._path(partial), self._path(path)):
            return True
        self.delete(partial)
        return False

    def overwrite(self, path: str, content: bytes) -> None:
        """Whoever reads it meanwhile may find it empty, or some of it."""
        stream = self._system.create(self._path(path), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def size_bytes(self, path: str) -> int:
        """Of a file; -1 where there is none."""
        path = self._path(path)
        return int(self._system.getFileStatus(path).getLen()) if self._system.exists(path) else -1

    def move(self, source: str, target: str) -> None:
        """Raises `UserError` where the file system refuses."""
        self._system.mkdirs(self._path(target).getParent())
        if not self._system.rename(self._path(source), self._path(target)):
            raise UserError(f"{source} cannot be renamed to {target}: look at the permissions of both directories")

    def delete(self, path: str) -> None:
        """A file, or a directory with all that is in it; nothing where there is none."""
        self._system.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(path)


def write_new_file(path: Path, content: bytes) -> bool:
    """On a local disk, where a rename would replace the file: False where there is one. Durable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")
    try:
        write_whole(partial, content, durable=True)
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    fsync_directory(path.parent)
    return True


def check_one_file_system(first: str, second: str) -> None:
    """Raises `UserError` where files cannot be renamed from one directory into the other."""
    parsed = [urlparse(path) for path in (first, second)]
    differ = parsed[0][:2] != parsed[1][:2]
    if not differ and parsed[0].scheme in ("", "file"):
        differ = len({os.stat(_existing(Path(one.path))).st_dev for one in parsed}) > 1
    if differ:
        raise UserError(f"{first} and {second} are on two file systems: files are renamed from one to the other")


def _existing(path: Path) -> Path:
    """The path, or the nearest of its parents that there is."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
