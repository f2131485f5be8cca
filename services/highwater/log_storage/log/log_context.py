"""The context that the parts of one log share: where it is, its settings, the disk under it, and whether it is
online."""

from __future__ import annotations

from pathlib import Path

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.files.disk import Disk, DiskErrorKind
from highwater.records import CorruptBatchError

NO_OFFSET = -1
NO_TIME = -1


class LogContext:
    """`directory` changes where the log's directory is renamed, `config` with the topic's configuration. A log is
    online as long as neither it nor its disk has a `failure`."""

    def __init__(self, directory: Path, config: LogConfig, disk: Disk | None) -> None:
        """`disk`: of its log directory; None for a log by itself."""
        self.directory = directory
        self.config = config
        self.disk = Disk() if disk is None else disk
        self.failure: str | None = None  # why the log is offline

    def check_online(self) -> None:
        """Raises `LogError` (LOG_STORAGE_ERROR)."""
        failure = self.failure or self.disk.failure
        if failure:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"the log {self.directory} is offline: {failure}")

    def fail(self, error: Exception | str) -> LogError:
        """Takes the log offline: what is on disk is not known to be what is in memory."""
        if isinstance(error, OSError):
            self.disk.note(error)
        self.failure = self.failure or str(error)
        self.disk.health_changed = True
        return LogError(ErrorCode.LOG_STORAGE_ERROR, f"the log {self.directory} is offline: {self.failure}")

    def refusal(self, error: OSError) -> LogError:
        """The error to answer with where nothing has changed: the log stays online, unless the whole directory has
        failed."""
        return self.disk.refusal(error, str(self.directory))

    def fail_unless_passing(self, error: OSError | CorruptBatchError) -> LogError:
        """Takes the log offline, unless a full disk, or a lack of descriptors, has left it as it can go on from."""
        if isinstance(error, OSError) and self.disk.note(error) in (DiskErrorKind.FULL, DiskErrorKind.LACKING):
            return self.refusal(error)
        return self.fail(error)
