"""Files as Spark reaches them: any file system that Hadoop knows, through the driver's JVM."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from uuid import uuid4

from highwater.atomic_file import fsync_directory, fsync_file, write_whole
from highwater.errors import UserError
from highwater.spark.pipelines.session import s3a

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Of an object store that makes an object only where there is none of its name.
_CREATE_NEW = "fs.option.create.conditional.overwrite"
_EXISTS = ("FileAlreadyExistsException", "RemoteFileChangedException")
# As Hadoop's statuses are put into words.
_STATUS = re.compile(r"path=(.*?); isDirectory=(?:(true)|false; length=(\d+));")


_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one directory: an object for each of a million files would take as long as the files do."""

    directory: str  # below the one that was listed; empty: that one itself
    sizes_bytes: Mapping[str, int]  # by name; never empty

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}" if self.directory else name


class HadoopFiles:
    """Paths are absolute, or URIs. Everything raises `Py4JJavaError` where the file system fails."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        """`root` says which file system. Raises `UserError` where Spark has no jar for it."""
        from py4j.java_gateway import is_instance_of
        from py4j.protocol import Py4JJavaError

        context = spark.sparkContext
        self._jvm: Any = context._jvm
        self._hadoop: Any = self._jvm.org.apache.hadoop.fs
        try:
            system = self._hadoop.Path(root).getFileSystem(context._jsc.hadoopConfiguration())
        except Py4JJavaError as error:
            if not re.search(r"ClassNotFoundException|UnsupportedFileSystemException", str(error)):
                raise
            raise UserError(
                f"this Spark session has no file system for {root}: start it with its jar, such as --packages "
                f"{s3a.coordinates()[0]} for {s3a.SCHEME}://"
            ) from error
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
        """Names of what is in the directory itself, sorted; none where there is no directory."""
        local = self._local(directory)
        if local is not None:
            return sorted(os.listdir(local)) if local.is_dir() else []
        if not self.exists(directory):
            return []
        found = self._listed(self._system.listStatusIterator(self._path(directory)))
        return sorted(path.rpartition("/")[2] for path, _, _ in found)

    def listings(self, directory: str, below: str = "") -> Iterator[Listing]:
        """Every file below the directory, or only below one in it, but for those with a part of their path hidden (`_`
        or `.` in front): directory by directory, in their order. On the driver's own disks each is looked at when it is
        its turn, elsewhere all of them at once."""
        local = self._local(directory)
        wanted = f"{directory}/{below}" if below else directory
        if local is not None:
            yield from local_listings(local, below)
        elif self.exists(wanted):
            above = len(self.qualified(directory)) + 1
            listed = self._listed(self._system.listFiles(self._path(wanted), True))
            yield from listings(
                (path[above:], size_bytes) for path, is_directory, size_bytes in listed if not is_directory
            )

    def _listed(self, iterator: Any) -> list[tuple[str, bool, int]]:
        """Path, whether it is a directory, and size of each: a few calls for all, where some for each take ms."""
        found = self._jvm.org.apache.hadoop.util.functional.RemoteIterators.toList(iterator)
        read = statuses(str(found.toString()))
        if len(read) == found.size():
            return read
        # A file system whose statuses have words of their own.
        return [(str(one.getPath().toString()), bool(one.isDirectory()), int(one.getLen())) for one in found]

    def read(self, path: str, at_most_bytes: int | None = None) -> bytes:
        """The bytes of a file from its beginning."""
        stream = self._system.open(self._path(path))
        try:
            return bytes(stream.readAllBytes() if at_most_bytes is None else stream.readNBytes(at_most_bytes))
        finally:
            stream.close()

    def write(self, path: str, content: bytes) -> None:
        """Writes a new file, which has its name only when it is whole."""
        partial = f"{path}.partial"
        self.overwrite(partial, content)
        self.move(partial, path)

    def write_new(self, path: str, content: bytes) -> bool:
        """Writes a new file likewise; False where there is one of this name, which stays as it is."""
        local = self._local(path)
        if local is not None:
            return write_new_file(local, content)
        if self.exists(path):
            return False
        if self._system.hasPathCapability(self._path(path), _CREATE_NEW):
            return self._create_new(path, content)
        partial = f"{path}.{uuid4().hex}.partial"
        self.overwrite(partial, content)
        if self._system.rename(self._path(partial), self._path(path)):
            return True
        self.delete(partial)
        return False

    def _create_new(self, path: str, content: bytes) -> bool:
        """Creates a file in an object store, whose objects are there whole or not at all."""
        from py4j.protocol import Py4JJavaError

        stream = self._system.createFile(self._path(path)).must(_CREATE_NEW, "true").recursive().build()
        try:
            stream.write(bytearray(content))
            stream.close()
        except Py4JJavaError as error:
            if not any(name in str(error) for name in _EXISTS):
                raise
            return False
        return True

    def overwrite(self, path: str, content: bytes) -> None:
        """Writes a file anew; readers may meanwhile find it empty or incomplete."""
        stream = self._system.create(self._path(path), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def size_bytes(self, path: str) -> int:
        """The size of a file; -1 where there is none."""
        path = self._path(path)
        return int(self._system.getFileStatus(path).getLen()) if self._system.exists(path) else -1

    def move(self, source: str, target: str) -> None:
        """Raises `UserError` where the file system refuses."""
        self._system.mkdirs(self._path(target).getParent())
        if not self._system.rename(self._path(source), self._path(target)):
            raise UserError(f"{source} cannot be renamed to {target}: look at the permissions of both directories")

    def delete(self, path: str) -> None:
        """Deletes a file, or a directory with all that is in it, if there is one."""
        self._system.delete(self._path(path), True)

    def fsync(self, paths: Iterable[str]) -> None:
        """Makes what was written to local disks, renamed there or removed outlast a loss of power. Elsewhere the file
        system sees to that."""
        local = [found for path in paths if (found := self._local(path)) is not None]
        fsync_files(local)

    def _local(self, path: str) -> Path | None:
        """The path of a file of this machine."""
        if "://" in path and not path.startswith("file:"):
            return None
        whole = path if path.startswith("file:") else self.qualified(path)
        return Path(re.sub("^/+", "/", whole.removeprefix("file:"))) if whole.startswith("file:") else None

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(path)


def qualified(spark: SparkSession, path: str) -> str:
    """The path as Spark's streaming queries need it: `hdfs:///data` alone has no host for them."""
    return HadoopFiles(spark, path).qualified(path)


def statuses(told: str) -> list[tuple[str, bool, int]]:
    """Parses what Java prints of a list of Hadoop's `FileStatus`. Pure."""
    return [(path, directory == "true", int(size or 0)) for path, directory, size in _STATUS.findall(told)]


def listings(files: Iterable[tuple[str, int]]) -> list[Listing]:
    """Listings of paths and sizes in any order, without the hidden ones. Pure."""
    directories: dict[str, dict[str, int]] = defaultdict(dict)
    for path, size_bytes in files:
        directory, _, name = path.rpartition("/")
        directories[directory][name] = size_bytes
    return [
        Listing(directory, shown)
        for directory, sizes in sorted(directories.items())
        if not any(map(_hidden, directory.split("/")))
        and (shown := {name: size for name, size in sizes.items() if not _hidden(name)})
    ]


def local_listings(directory: Path, below: str = "") -> Iterator[Listing]:
    """Listings of a directory of this machine, as `HadoopFiles.listings` has them."""
    sizes, inner = _local_entries(directory / below)
    if sizes:
        yield Listing(below, sizes)
    for name in sorted(inner):
        yield from local_listings(directory, f"{below}/{name}" if below else name)


def _local_entries(directory: Path) -> tuple[dict[str, int], list[str]]:
    """The files in a directory, with their sizes, and the directories in it, without the hidden ones; nothing where
    there is no such directory. Raises `UserError` where it may not be read: what is in it might count."""
    sizes: dict[str, int] = {}
    inner: list[str] = []
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return sizes, inner
    except PermissionError:
        raise UserError(f"{directory} cannot be read: look at its permissions, or name another directory") from None
    try:
        # By the descriptor each file is found by its name alone; by a path the kernel would walk all of it each time.
        with os.scandir(descriptor) as found:
            for one in found:
                name = one.name
                if name.startswith(_HIDDEN):
                    continue
                if one.is_dir():
                    inner.append(name)
                    continue
                try:
                    sizes[name] = one.stat().st_size
                except FileNotFoundError:  # removed just now
                    continue
    finally:
        os.close(descriptor)
    return sizes, inner


def _hidden(name: str) -> bool:
    return name.startswith(_HIDDEN)


def fsync_files(paths: Iterable[Path]) -> None:
    """Flushes the files that exist, and the directories above all of them, to disk."""
    directories: set[Path] = set()
    for path in paths:
        if path.is_file():
            fsync_file(path)
        directories.update(path.parents)
    for directory in sorted(directories, reverse=True):
        with suppress(FileNotFoundError, PermissionError):  # removed with what was in it; of others
            fsync_directory(directory)


def write_new_file(path: Path, content: bytes) -> bool:
    """Writes a new file on a local disk, where a rename would replace one; False where there is one. It is flushed to
    disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")
    try:
        write_whole(partial, content, sync=True, mode=0o644)
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
