"""Leases: of the one process that may write to an archive of plain files, or work with a checkpoint, renewed every few
seconds.

    ARCHIVE/_commits/writer.json     {"run": "5f0c…", "host": "node-3", "pid": 4711, "renewed_ms": 1790000000000,
                                      "processes": "06a4… pid:[4026531836]"}

A lease that was not renewed for `LEASE_S` is anybody's, and so is one of a process of this machine that is gone.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from highwater.errors import UserError
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.telemetry.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE_S = 30.0
RENEW_S = 5.0
# Of two that take a lease at once, the one that wrote first sees the other's name after this. It is read again
# so often before it counts as unreadable: it may be written just now.
SETTLE_S = 0.2
READS = 10

_log = get_logger("spark.pipelines")


@dataclass(frozen=True, slots=True)
class Holder:
    run: str
    host: str
    pid: int
    renewed_ms: int
    processes: str = ""  # among which the pid is one, as `process_namespace` says

    @property
    def gone(self) -> bool:
        """True where it is a process of this machine that has ended."""
        if not self.processes or self.processes != process_namespace():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


def process_namespace() -> str:
    """The namespace in which a pid means one process: this boot of this machine, in this container. Several hosts may
    have the same name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux: no containers
        return socket.gethostname()


class UnreadableLeaseError(Exception):
    """A lease that exists, and cannot be read."""


class Files(Protocol):
    def exists(self, path: str) -> bool: ...
    def read(self, path: str) -> bytes: ...
    def overwrite(self, path: str, content: bytes) -> None: ...
    def delete(self, path: str) -> None: ...


class Lease:
    def __init__(self, files: Files, path: str, pipeline: str, does: str) -> None:
        """Names its holder, as in "another `archive pipeline` (process 7 on node-3) `writes to /data/archive`"."""
        self._files = files
        self._path = path
        self._pipeline = pipeline
        self._does = does
        self._run = uuid4().hex
        self._writing = Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Takes the lease, renews it, and gives it back. Raises `UserError` where another process holds it, after
        `LEASE_S` at most."""
        self._take()
        stopping = Event()
        renewing = Thread(target=self._renew, args=(stopping,), name="archive lease", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            stopping.set()
            renewing.join()
            try:
                if self._is_own():
                    self._files.delete(self._path)
            except Exception as error:  # the JVM may be gone; a lease that nobody renews ends by itself
                _log.warning("lease %s is not given back: %s", self._path, error)

    def check(self) -> None:
        """Confirms, before anything is changed, that this process holds the lease. Raises `UserError` where another
        process has taken it, `UnreadableLeaseError`."""
        if not self._is_own():
            raise self._refusal(self._holder())

    def _take(self) -> None:
        holder: Holder | None = None
        seen: Holder | None = None
        deadline = monotonic() + LEASE_S
        while monotonic() < deadline:
            try:
                holder = self._holder()
            except UnreadableLeaseError:
                continue  # it may be one all the same
            if holder is None or holder.gone:
                break
            if seen is not None and holder != seen:
                raise self._refusal(holder)  # renewed: it is alive
            seen = holder
            sleep(min(RENEW_S, LEASE_S) / 5)
        try:
            self._write()
        except Exception:
            # HDFS fails a writer whose file another one begins anew meanwhile.
            sleep(SETTLE_S)
            with suppress(UnreadableLeaseError):
                if (found := self._holder()) is not None and found != holder:
                    raise self._refusal(found) from None
            raise
        sleep(SETTLE_S)
        try:
            self.check()
        except UnreadableLeaseError:  # another process is writing it
            raise self._refusal(None) from None

    def _renew(self, stopping: Event) -> None:
        while not stopping.wait(RENEW_S):
            try:
                if not self._is_own():
                    return
                self._write()
            except Exception as error:  # the next one may do; else somebody else takes it, which `check` finds
                _log.warning("lease %s is not renewed: %s", self._path, error)

    def _write(self) -> None:
        now_ms = int(time() * 1000)
        holder = Holder(self._run, socket.gethostname(), os.getpid(), now_ms, process_namespace())
        with self._writing:
            self._files.overwrite(self._path, json.dumps(asdict(holder)).encode())

    def _is_own(self) -> bool:
        holder = self._holder()
        return holder is not None and holder.run == self._run

    def _holder(self) -> Holder | None:
        for _ in range(READS):
            with self._writing:
                if not self._files.exists(self._path):
                    return None
                try:
                    read: dict[str, Any] = json.loads(self._files.read(self._path))
                    return Holder(**read)
                except Exception as error:  # Java's, say, where it was deleted just now
                    unreadable = error
            sleep(SETTLE_S / READS)
        raise UnreadableLeaseError(f"{self._path}: {unreadable}")

    def _refusal(self, holder: Holder | None) -> UserError:
        who = "" if holder is None else f" (process {holder.pid} on {holder.host})"
        return UserError(f"another {self._pipeline}{who} {self._does}: only one at a time can")


def checkpoint_lease(spark: SparkSession, pipeline: str, checkpoint: str) -> Lease:
    """The lease of a pipeline that sends to topics: two with one checkpoint would both send what it says is next."""
    files = HadoopFiles(spark, checkpoint)
    path = f"{files.qualified(checkpoint)}/writer.json"
    return Lease(files, path, pipeline, f"works with checkpoint {checkpoint}")
