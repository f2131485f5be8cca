"""Knowledge and decisions of a leader under one leader epoch: high watermark, ISR, and the answers to replicas'
fetches.

Made by `Partition` when the fence is answered, dropped when leadership ends. Pure, as `Partition` is. The numbers in
this file are RULES'.
"""

from __future__ import annotations

from collections.abc import Sequence

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import VersionedState
from highwater.model.leader_epochs import LeaderEpochCache
from highwater.replica_manager.partition.actions import (
    FAR_MS,
    NEVER_MS,
    NO_ACTIONS,
    Action,
    DivergingEpoch,
    FenceAnswer,
    FetchSession,
    FetchVerdict,
    FollowerFetch,
    HighWatermarkAdvanced,
    LiveBrokers,
    LogStartRaised,
    PartitionSettings,
    ReadState,
    WriteIsr,
)
from highwater.replica_manager.partition.isr import IsrProposals, next_state
from highwater.replica_manager.partition.replica import Replica


class Leadership:
    """Invariants: log start ≤ high watermark ≤ log end offset; the high watermark only grows, and never beyond the
    acked offset of a replica that counts (invariant 2); the ISR holds the leader (invariant 6)."""

    __slots__ = (
        "_held",
        "_propose_from_ms",
        "broker_id",
        "epoch_start",
        "epochs",
        "followers",
        "followers_in_order",
        "high_watermark",
        "incarnation",
        "leader_epoch",
        "live",
        "log_end_offset",
        "log_start_offset",
        "min_insync_replicas",
        "proposals",
        "settings",
        "tick_from_ms",
    )

    def __init__(
        self,
        broker_id: int,
        settings: PartitionSettings,
        state: VersionedState,
        replicas: Sequence[int],
        min_insync_replicas: int,
        live: LiveBrokers,
        answer: FenceAnswer,
        high_watermark: int,
        first_proposal_id: int,
        now_ms: int,
    ) -> None:
        """`high_watermark`: as this process knew it before, 0 where it did not."""
        self.broker_id = broker_id
        self.settings = settings
        self.leader_epoch = state.state.leader_epoch
        self.min_insync_replicas = min_insync_replicas  # min(configured, assigned) (5.2)
        self.live = live
        self.incarnation = answer.incarnation  # log-storage's that answered the fence

        self.log_start_offset = answer.log_start_offset  # only grows
        self.log_end_offset = answer.log_end_offset  # as log-storage last answered; only grows (3.2)
        # log-storage's is that of the last checkpoint; this process may know better (2: it only grows).
        known = max(high_watermark, answer.high_watermark, answer.log_start_offset)
        self.high_watermark = min(known, answer.log_end_offset)
        # 3.2: the epoch starts at the log end that the fence answered, in an empty log too.
        self.epochs = LeaderEpochCache(answer.epochs)
        self.epochs.assign(self.leader_epoch, answer.log_end_offset)
        start = self.epochs.start_of(self.leader_epoch)
        assert start is not None  # invariant 5: a log that this epoch fences holds no higher one
        self.epoch_start = start

        self.proposals = IsrProposals(state, first_proposal_id)
        self._propose_from_ms = NEVER_MS  # back-off: no proposal and no other read of the state before
        # Before that time a tick changes nothing, unless an event comes first; FAR_MS: nothing waits for a time.
        self.tick_from_ms = FAR_MS
        # All assigned but the leader itself.
        self.followers = {r: Replica(r) for r in replicas if r != broker_id}
        self.followers_in_order = tuple(self.followers.values())
        self._held = True
        self._count_members(now_ms)

    # ---------------------------------------------------------------------------------------------------- queries

    @property
    def high_watermark_is_held(self) -> bool:
        """It does not advance while the committed ISR is below the minimum, or the elr holds somebody (5.2)."""
        return self._held

    @property
    def enough_certain_replicas(self) -> bool:
        """Tells whether a produce with `acks=all` may be appended (5.3)."""
        return self.proposals.certain_isr_size >= self.min_insync_replicas

    @property
    def enough_committed_replicas(self) -> bool:
        """Tells whether a produce with `acks=all` may be acknowledged (5.3)."""
        return len(self.proposals.committed.state.isr) >= self.min_insync_replicas

    def is_followed(self, now_ms: int, within_ms: int) -> bool:
        """Tells whether every replica that could be elected has fetched under this leader epoch lately. Whoever leads
        under a later one fetches under this one no more, so there was no such leader before `within_ms` ago (11.12)."""
        since_ms = now_ms - within_ms
        for replica in self.followers_in_order:
            if replica.counts_for_high_watermark and replica.heard_ms < since_ms:
                return False
        return True

    def low_watermark(self) -> int:
        """The smallest log start of the registered replicas (5.8); -1 while one of them has not fetched."""
        live = self.live.epochs
        starts = [r.log_start_offset for r in self.followers_in_order if r.broker_id in live]
        return min([self.log_start_offset, *starts])

    # ------------------------------------------------------------------------------------------------- the own log

    def log_grew(self, log_end_offset: int, now_ms: int) -> Sequence[Action]:
        if log_end_offset <= self.log_end_offset:
            return NO_ACTIONS
        for replica in self.followers_in_order:
            if replica.keeps_up(self.log_end_offset):
                replica.settle(self.log_end_offset)  # from here on it has to tell that it has copied this (4.11)
                self._tick_from(replica.lags_from_ms(self.settings.replica_lag_time_max_ms, self.log_end_offset))
        self.log_end_offset = log_end_offset
        if self._advance_high_watermark(now_ms):
            return (HighWatermarkAdvanced(self.high_watermark),)
        return NO_ACTIONS

    def log_start_raised(self, log_start_offset: int) -> Sequence[Action]:
        if log_start_offset <= self.log_start_offset:
            return NO_ACTIONS
        self.log_start_offset = log_start_offset
        self.epochs.truncate_from_start(log_start_offset)
        return (LogStartRaised(log_start_offset),)

    # -------------------------------------------------------------------------------------------- followers' fetches

    def fetched(self, fetch: FollowerFetch, now_ms: int) -> FetchVerdict:
        """A replica's fetch (4.1-4.3, 4.5). On an error or a divergence nothing is recorded."""
        session, leader_epoch, fetch_offset, acked_offset, last_epoch, log_start_offset, repeated = fetch
        if leader_epoch != self.leader_epoch:
            lower = leader_epoch < self.leader_epoch
            return self._refuse(session, ErrorCode.FENCED_LEADER_EPOCH if lower else ErrorCode.UNKNOWN_LEADER_EPOCH)
        replica = self.followers.get(session.broker_id)
        if replica is None:
            return self._refuse(session, ErrorCode.REPLICA_NOT_ASSIGNED)
        if session is not replica.session:
            if session.broker_epoch < max(replica.broker_epoch, self.live.epochs.get(session.broker_id, -1)):
                return self._refuse(session, ErrorCode.STALE_BROKER_EPOCH)
            if replica.is_older(session):
                return self._refuse(session, ErrorCode.FETCH_SESSION_STALE)
        if not 0 <= acked_offset <= fetch_offset:
            return self._refuse(session, ErrorCode.INVALID_REQUEST)  # 4.1
        if not self.log_start_offset <= fetch_offset <= self.log_end_offset:
            return self._refuse(session, ErrorCode.OFFSET_OUT_OF_RANGE)
        if last_epoch != leader_epoch:  # of the own epoch nothing is beyond the log end: it agrees
            diverging = self.epochs.diverging(last_epoch, fetch_offset, self.log_end_offset)
            if diverging is not None:
                self.unnamed(session)
                end = diverging.end_offset if diverging.leader_epoch >= 0 else self.log_start_offset
                return self._verdict(ErrorCode.NONE, DivergingEpoch(diverging.leader_epoch, end), NO_ACTIONS)
        if session is not replica.session or replica.closed_since_ms is not None:
            replica.bind(session, self.log_end_offset)
        grew = acked_offset != replica.log_end_offset
        replica.fetched(acked_offset, log_start_offset, self.log_end_offset, now_ms, repeated)
        if replica.in_sync or self._is_about_to_join(replica, now_ms):  # until that time is over (5.1)
            self._tick_from(self._time_is_over_ms(replica))
        short = acked_offset < self.high_watermark
        if replica.in_sync is short or (short and replica.broker_id in self.proposals.committed.state.elr):
            # In the ISR or the elr without all that is committed (4.5, 7.3), or out of the ISR with all of it (5.6).
            return self._verdict(ErrorCode.NONE, None, self._evaluate(now_ms))
        if grew and self._advance_high_watermark(now_ms):
            return self._verdict(ErrorCode.NONE, None, (HighWatermarkAdvanced(self.high_watermark),))
        return self._verdict(ErrorCode.NONE, None, NO_ACTIONS)

    def _refuse(self, session: FetchSession, error: ErrorCode) -> FetchVerdict:
        self.unnamed(session)  # what it had said before is not so any more
        return self._verdict(error, None, NO_ACTIONS)

    def _verdict(self, error: ErrorCode, diverging: DivergingEpoch | None, actions: Sequence[Action]) -> FetchVerdict:
        return FetchVerdict(error, diverging, self.high_watermark, self.log_start_offset, self.log_end_offset, actions)

    def session_opened(self, session: FetchSession, now_ms: int) -> Sequence[Action]:
        replica = self.followers.get(session.broker_id)
        reopened = replica is not None and replica.reopen(session, self.log_end_offset)
        return self.evaluate(now_ms) if reopened else NO_ACTIONS

    def unnamed(self, session: FetchSession) -> Sequence[Action]:
        """The session's next requests say nothing of this partition (4.11)."""
        replica = self.followers.get(session.broker_id)
        if replica is not None and replica.session == session and replica.repeated:
            replica.unnamed(self.log_end_offset)
            self._tick_from(self._time_is_over_ms(replica))
        return NO_ACTIONS

    def session_liveness_changed(self, session: FetchSession, now_ms: int) -> Sequence[Action]:
        replica = self.followers.get(session.broker_id)
        return self._evaluate(now_ms) if replica is not None and replica.session == session else NO_ACTIONS

    def session_closed(self, session: FetchSession, now_ms: int) -> Sequence[Action]:
        replica = self.followers.get(session.broker_id)
        return self.evaluate(now_ms) if replica is not None and replica.close(session, now_ms) else NO_ACTIONS

    def brokers_changed(self, live: LiveBrokers, now_ms: int) -> Sequence[Action]:
        self.live = live
        return self.evaluate(now_ms)

    # ------------------------------------------------------------------------------------------------------- the ISR

    def isr_written(self, proposal_id: int, revision: int, now_ms: int) -> Sequence[Action]:
        return self.evaluate(now_ms) if self.proposals.written(proposal_id, revision) else NO_ACTIONS

    def isr_failed(self, proposal_id: int, now_ms: int, *, refused: bool) -> Sequence[Action]:
        """Refused, or of unknown outcome; either way the proposal counts until a read has shown more (2.4)."""
        if not self.proposals.failed(proposal_id, refused=refused):
            return NO_ACTIONS
        if not self.proposals.unsettled:
            return self.evaluate(now_ms)  # a watch was faster
        self._propose_from_ms = now_ms + self.settings.isr_retry_backoff_ms
        self._tick_from(self._propose_from_ms)
        return (ReadState(),)

    def tick(self, now_ms: int) -> Sequence[Action]:
        return self._evaluate(now_ms)

    def evaluate(self, now_ms: int) -> Sequence[Action]:
        """After anything but the hot paths: what the ISR should become, and how far the high watermark may go."""
        self._count_members(now_ms)
        return self._evaluate(now_ms)

    def _evaluate(self, now_ms: int) -> Sequence[Action]:
        # The proposal first: a joining member counts from its proposal on (5.1).
        step = self._next_isr_step(now_ms)
        if step is not None:
            self._count_members(now_ms)
        self.tick_from_ms = self._next_tick_ms(now_ms)
        if self._advance_high_watermark(now_ms):
            advanced = HighWatermarkAdvanced(self.high_watermark)
            return (advanced,) if step is None else (step, advanced)
        return NO_ACTIONS if step is None else (step,)

    def _tick_from(self, at_ms: int) -> None:
        self.tick_from_ms = min(self.tick_from_ms, at_ms)

    def _next_tick_ms(self, now_ms: int) -> int:
        """Returns the next time at which something that has been evaluated now turns out otherwise although nothing has
        happened."""
        settings, live = self.settings, self.live.epochs
        next_ms = self._propose_from_ms if self._propose_from_ms > now_ms else FAR_MS
        for replica in self.followers_in_order:
            if replica.in_sync:
                if not self._is_kept_up(replica, now_ms):
                    next_ms = min(next_ms, self._time_is_over_ms(replica))
                if replica.closed_since_ms is not None:
                    next_ms = min(next_ms, replica.closed_since_ms + settings.session_grace_ms)
                if replica.broker_id not in live and self.broker_id in live:
                    next_ms = min(next_ms, replica.silent_from_ms(settings.silent_ms))
            elif self._is_about_to_join(replica, now_ms):
                if not self._is_kept_up(replica, now_ms):
                    next_ms = min(next_ms, self._time_is_over_ms(replica))
            elif not replica.fetched_since_leaving and self._is_repeated(replica, now_ms):
                next_ms = now_ms + 1  # the session's next request fetches it
        return next_ms

    def _time_is_over_ms(self, replica: Replica) -> int:
        """From then on a replica that says nothing more lags (5.6), or is not about to join any more (5.1): for that it
        has no more time because it had joined before."""
        lag_ms = self.settings.replica_lag_time_max_ms
        if replica.in_sync:
            return replica.lags_from_ms(lag_ms, self.log_end_offset)
        return replica.last_caught_up_ms(self.log_end_offset) + lag_ms + 1

    def _is_kept_up(self, replica: Replica, now_ms: int) -> bool:
        """Tells whether the session says in each request that the replica is caught up."""
        return replica.keeps_up(self.log_end_offset) and self._is_repeated(replica, now_ms)

    def _is_repeated(self, replica: Replica, now_ms: int) -> bool:
        """Tells whether the session's requests repeat what it said of the replica, and come: `session_liveness_changed`
        is told when they do not any more, and when they do again (4.11)."""
        return (
            replica.repeated
            and replica.session is not None
            and replica.closed_since_ms is None
            and now_ms - replica.session.last_request_ms < self.settings.session_silent_ms
        )

    def _count_members(self, now_ms: int) -> None:
        """Brings what the high watermark depends on up to date with the committed state and the proposals."""
        state = self.proposals.committed.state
        maximal = self.proposals.maximal_isr
        for replica in self.followers_in_order:
            replica.counts_for_high_watermark = replica.broker_id in maximal
            member = replica.broker_id in state.isr
            if member and not replica.in_sync:
                replica.in_sync_since_ms = now_ms  # 5.6: the lag counts from the election or the joining
            if replica.in_sync and not member:
                replica.leave(now_ms)
            replica.in_sync = member
        self._held = len(state.isr) < self.min_insync_replicas or bool(state.elr)

    def _next_isr_step(self, now_ms: int) -> WriteIsr | ReadState | None:
        proposals = self.proposals
        if proposals.outcome_awaited or now_ms < self._propose_from_ms:
            return None
        if proposals.refused:
            self._propose_from_ms = now_ms + self.settings.isr_retry_backoff_ms
            return ReadState()  # the one before had no answer
        committed = proposals.committed.state
        lost_data = [r.broker_id for r in self.followers_in_order if 0 <= r.log_end_offset < self.high_watermark]
        leaving = [r.broker_id for r in self.followers_in_order if r.in_sync and self._leaves(r, now_ms)]
        joining = [r for r in self.followers_in_order if not r.in_sync and self._joins(r)]
        if not (leaving or joining or lost_data or committed.elr or proposals.unknown):
            return None
        isr = frozenset(committed.isr).difference(leaving, lost_data).union(r.broker_id for r in joining)
        assert self.broker_id in isr  # invariant 6
        wanted = next_state(committed, isr, frozenset(lost_data), self.min_insync_replicas)
        # With an outcome unknown even an unchanged state is written: only another write over the same revision makes
        # sure that the unknown one is not written later (2.4).
        if wanted == committed and not proposals.unknown:
            return None
        return proposals.propose(wanted, {r.broker_id: r.broker_epoch for r in joining})

    def _leaves(self, replica: Replica, now_ms: int) -> bool:
        """Tells whether a member has to leave the ISR: its session is closed, it is silent and unregistered, or it lags
        (5.6)."""
        closed = replica.closed_since_ms
        if closed is not None and now_ms - closed >= self.settings.session_grace_ms:
            return True
        # A node that was lost leaves its sessions open. What is seen of the registrations counts from when this broker
        # sees its own: before, nothing has been listed.
        live = self.live.epochs
        if (
            replica.broker_id not in live
            and self.broker_id in live
            and now_ms >= replica.silent_from_ms(self.settings.silent_ms)
        ):
            return True
        return now_ms >= self._time_is_over_ms(replica)

    def _joins(self, replica: Replica) -> bool:
        """Tells whether a replica may join the ISR (5.6), under the registration that its fetches name, as far as that
        is known here (2.3)."""
        return (
            replica.log_end_offset >= max(self.high_watermark, self.epoch_start)
            and replica.fetched_since_leaving
            and replica.session_open
            and self.live.epochs.get(replica.broker_id) == replica.broker_epoch
            and replica.broker_id not in self.live.shutting_down
        )

    def _advance_high_watermark(self, now_ms: int) -> bool:
        """5.1, 5.2. Whether it advanced."""
        if self._held:
            return False
        lowest = self.log_end_offset
        for replica in self.followers_in_order:
            if replica.log_end_offset < lowest and (
                replica.counts_for_high_watermark or self._is_about_to_join(replica, now_ms)
            ):
                lowest = replica.log_end_offset
        if lowest <= self.high_watermark:
            return False  # invariant 2: it only grows
        self.high_watermark = lowest
        return True

    def awaits(self, broker_id: int, now_ms: int) -> bool:
        """Tells whether the high watermark waits for this follower (5.1): its traffic is not throttled then (4.14)."""
        replica = self.followers.get(broker_id)
        return replica is not None and (replica.counts_for_high_watermark or self._is_about_to_join(replica, now_ms))

    def _is_about_to_join(self, replica: Replica, now_ms: int) -> bool:
        """Caught up lately, so that the high watermark must not run away from it; one that was killed, or taken out of
        the ISR because it copies nothing any more (7.7), must not hold it (5.1)."""
        return (
            now_ms - replica.last_caught_up_ms(self.log_end_offset) <= self.settings.replica_lag_time_max_ms
            and replica.fetched_since_leaving
            and replica.session_open
            and self.live.epochs.get(replica.broker_id) == replica.broker_epoch
        )

    def check_invariants(self) -> None:
        committed = self.proposals.committed
        assert committed.state.leader == self.broker_id  # invariant 5
        assert self.broker_id in committed.state.isr  # invariant 6
        assert not set(committed.state.isr) & set(committed.state.elr)  # 7.3
        assert self.log_start_offset <= self.high_watermark <= self.log_end_offset
        in_flight = self.proposals.in_flight
        assert in_flight is None or in_flight.compare_revision == committed.revision  # 2.2
        maximal = self.proposals.maximal_isr
        for replica in self.followers_in_order:
            assert replica.log_end_offset <= self.log_end_offset  # 4.2
            assert replica.counts_for_high_watermark == (replica.broker_id in maximal)
            assert replica.in_sync == (replica.broker_id in committed.state.isr)
