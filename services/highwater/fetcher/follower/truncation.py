"""The cut of a log that disagrees with its leader's (RULES 4.3, 4.4). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from highwater.fetcher.follower.actions import DivergingEpoch
from highwater.model.leader_epochs import EpochEntry
from highwater.model.log_state import LogState


@dataclass(frozen=True, slots=True)
class Cut:
    """The new log end. `fully`: everything goes and the log starts anew there."""

    offset: int
    fully: bool


def cut_for_divergence(
    diverging: DivergingEpoch, leader_log_start_offset: int, log: LogState, epochs: Sequence[EpochEntry]
) -> Cut:
    """RULES 4.3: the smaller of the leader's end of the epoch and our own end of it. A cut that is still too high
    shows in the next fetch: every round either shortens the log or lowers its last epoch."""
    if diverging.leader_epoch < 0:
        return Cut(leader_log_start_offset, fully=True)
    return _cut_at(min(diverging.end_offset, own_end_offset(epochs, diverging.leader_epoch, log)), log)


def cut_for_out_of_range(leader_log_start_offset: int, leader_log_end_offset: int, log: LogState) -> Cut | None:
    """Kafka's out-of-range rule (RULES 4.4). None: the offset is within the leader's log."""
    if log.log_end_offset > leader_log_end_offset:
        return _cut_at(leader_log_end_offset, log)
    if log.log_end_offset < leader_log_start_offset:
        return Cut(leader_log_start_offset, fully=True)
    return None


def own_end_offset(epochs: Sequence[EpochEntry], leader_epoch: int, log: LogState) -> int:
    """End of the largest epoch at or below `leader_epoch`: the start of the next greater one, else the log end offset.

    Where all of ours are greater, nothing here is of that epoch or an earlier one: the first one's start."""
    following = (entry.start_offset for entry in epochs if entry.leader_epoch > leader_epoch)
    return min(min(following, default=log.log_end_offset), log.log_end_offset)


def may_cut(offset: int, log: LogState, unclean_epoch: int) -> bool:
    """RULES 4.4: never below the own high watermark, unless an unclean election came after the last epoch here."""
    return offset >= log.high_watermark or unclean_epoch > log.last_epoch


def _cut_at(offset: int, log: LogState) -> Cut:
    return Cut(offset, fully=offset < log.log_start_offset)
