"""Between the LogStorage service's messages and what is behind them."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.log_context import NO_OFFSET, NO_TIME
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.recovery.recovery_progress import RecoveryProgress
from highwater.model.log_state import LogState
from highwater.rpc.errors import to_proto
from highwater.v1 import log_storage_pb2


def refuse(answer: Any, error: LogError) -> None:
    """Puts the error into an answer."""
    answer.error.CopyFrom(to_proto(error.code, error.message))
    if isinstance(answer, log_storage_pb2.AppendResult):
        answer.base_offset = answer.last_offset = NO_OFFSET
        answer.log_append_time_ms = NO_TIME


class Answering:
    """The frame of a call: a `LogError` that ends it becomes the answer's error. Where `hosted` is set, the answer
    tells the log's state as it is then, whatever came of the call."""

    __slots__ = ("_answer", "hosted")

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.hosted: HostedLog | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, LogError):
            return False
        if error is not None:
            refuse(self._answer, error)
        if self.hosted is not None:
            fill_log(self._answer.log, self.hosted)
        return error is not None


def fill_state(target: log_storage_pb2.LogState, state: LogState) -> None:
    target.log_end_offset, target.last_epoch, target.log_start_offset, target.high_watermark = state


def fill_log(target: log_storage_pb2.LogState, hosted: HostedLog) -> None:
    """The log's state, as far as it is known, and whether it is offline."""
    if hosted.log is not None:
        fill_state(target, hosted.log.state)
    if hosted.offline_reason:
        target.offline = True


def describe(hosted: HostedLog, target: log_storage_pb2.LogDescription) -> None:
    target.topic = hosted.topic
    target.log_dir = str(hosted.log_dir.path)
    fence = hosted.fence
    target.fenced_epoch = fence.leader_epoch if fence is not None else -1
    if fence is not None:
        target.fenced_role = int(fence.role)  # type: ignore[assignment]
    if hosted.offline_reason:
        target.error.CopyFrom(to_proto(ErrorCode.LOG_STORAGE_ERROR, hosted.offline_reason))
    fill_log(target.log, hosted)
    if hosted.future is not None:
        target.future_log_dir = str(hosted.future.log_dir.path)
        target.future_log_end_offset = hosted.future.log.log_end_offset
        target.future_size_bytes = hosted.future.log.size_bytes
    target.scrubbed_ms = hosted.scrubbed_ms
    for damaged in hosted.known_damage:
        target.damaged.add(first_offset=damaged.first_offset, last_offset=damaged.last_offset, problem=damaged.problem)
    log = hosted.log
    if log is not None:
        target.size_bytes = log.size_bytes
        target.segments = len(log.segments)
        target.recovery_point = log.recovery_point
        for entry in log.epochs.entries:
            target.epochs.add(leader_epoch=entry.leader_epoch, start_offset=entry.start_offset)


def recovery_proto(progress: RecoveryProgress) -> log_storage_pb2.RecoveryProgress:
    return log_storage_pb2.RecoveryProgress(
        total_logs=progress.total_logs,
        opened_logs=progress.opened_logs,
        total_bytes=progress.total_bytes,
        scanned_bytes=progress.scanned_bytes,
    )
