"""The leader's view of one follower, under one leader epoch. A new leader epoch starts with new objects."""

from __future__ import annotations

from highwater.replica_manager.partition.actions import NEVER_MS, UNKNOWN_OFFSET, FetchSession


class Replica:
    """One follower as its fetches under this leader epoch show it. Nothing here is written by a fetch that the
    leader refused or found diverging (RULES 4.2)."""

    __slots__ = (
        "_awaited_end_offset",
        "_awaited_since_ms",
        "_fetched_since_leaving",
        "_heard_ms",
        "_last_caught_up_ms",
        "_last_fetch_leader_end_offset",
        "_last_fetch_ms",
        "_left_ms",
        "broker_id",
        "closed_since_ms",
        "counts_for_high_watermark",
        "in_sync",
        "in_sync_since_ms",
        "log_end_offset",
        "log_start_offset",
        "repeated",
        "session",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id

        # The acked offset: what the follower's log-storage has answered for (RULES 4.1, 4.5). UNKNOWN_OFFSET before the
        # first valid fetch under this leader epoch and the session's broker epoch; never above the leader's log end.
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET

        # The stream that last fetched this partition, or took that one's place; None before the first valid fetch.
        # Its (broker epoch, number) only grows.
        self.session: FetchSession | None = None
        # When the session closed, None while it is open. Set only where there is a session.
        self.closed_since_ms: int | None = None

        # Whether each request of the session says again what was said last of this partition (RULES 4.11). Only where
        # there is a session.
        self.repeated = False

        # The latest time at which the follower had, or is known to have had later, all that the leader had then, but
        # for what is repeated. Only grows under one broker epoch; NEVER_MS under a new one.
        self._last_caught_up_ms = NEVER_MS
        # Whether it is in the committed ISR. Kept by the leadership, as the two below.
        self.in_sync = False
        # From when on the lag of an ISR member counts: the election, or the commit of its joining (RULES 5.6). A member
        # joins with HW, not with the log end, so it may not be caught up yet and has replica.lag.time.max.ms for it.
        self.in_sync_since_ms = NEVER_MS

        # When it left the ISR last, and whether it has fetched since, but for what is repeated.
        self._left_ms = NEVER_MS
        self._fetched_since_leaving = True

        # Whether it is in the committed ISR or in a pending proposal's (RULES 5.1).
        self.counts_for_high_watermark = False

        self._heard_ms = NEVER_MS  # when it fetched last under this leader epoch, but for what is repeated; only grows
        self._last_fetch_ms = NEVER_MS
        self._last_fetch_leader_end_offset = 0
        # A log end offset that the leader had at `_awaited_since_ms` and this follower has not acknowledged yet.
        self._awaited_end_offset = 0
        self._awaited_since_ms = NEVER_MS

    @property
    def session_open(self) -> bool:
        return self.session is not None and self.closed_since_ms is None

    @property
    def broker_epoch(self) -> int:
        """Of the session; -1 where there is none."""
        return self.session.broker_epoch if self.session is not None else -1

    def is_older(self, session: FetchSession) -> bool:
        """Tells whether a newer stream than `session` has fetched this partition: a stream that was overtaken may still
        deliver what it had sent (RULES 4.1)."""
        mine = self.session
        if mine is None or session.broker_epoch != mine.broker_epoch:
            return mine is not None and session.broker_epoch < mine.broker_epoch
        return session.fetcher_id == mine.fetcher_id and session.number < mine.number

    @property
    def fetched_since_leaving(self) -> bool:
        """Tells whether it has fetched since it left the ISR: one that merely fell silent would join again at once, by
        what it had acknowledged before, and hold the high watermark for as long as its session seems open (RULES 5.6).
        """
        return self._fetched_since_leaving or (
            self.repeated and self.session is not None and self.session.last_request_ms > self._left_ms
        )

    @property
    def heard_ms(self) -> int:
        """The time of its last fetch under this leader epoch, of whichever registration; NEVER_MS: it has not."""
        if self.session is not None and self.repeated:
            return max(self._heard_ms, self.session.last_request_ms)
        return self._heard_ms

    def leave(self, now_ms: int) -> None:
        """It is in the committed ISR no more."""
        self._left_ms = now_ms
        self._fetched_since_leaving = False

    def keeps_up(self, leader_end_offset: int) -> bool:
        """Tells whether each request of the session says that the follower is caught up (RULES 4.11)."""
        return self.repeated and self.log_end_offset >= leader_end_offset

    def last_caught_up_ms(self, leader_end_offset: int) -> int:
        """Returns the latest time at which the follower had, or is known to have had later, all that the leader had
        then."""
        if self.session is not None and self.keeps_up(leader_end_offset):
            return max(self._last_caught_up_ms, self.session.last_request_ms)
        return self._last_caught_up_ms

    def settle(self, leader_end_offset: int) -> None:
        """Takes down what the session's requests have repeated so far: the leader's log is about to grow beyond it, or
        nothing is repeated any more."""
        if self.session is not None and self.repeated:
            self._last_caught_up_ms = self.last_caught_up_ms(leader_end_offset)
            if self.keeps_up(leader_end_offset):  # else the leader's end was another then: the second rule of `fetched`
                self._last_fetch_ms = max(self._last_fetch_ms, self.session.last_request_ms)

    def unnamed(self, leader_end_offset: int) -> None:
        """The session's requests say nothing of this partition from here on."""
        self.settle(leader_end_offset)
        self._heard_ms = self.heard_ms
        self._fetched_since_leaving = self.fetched_since_leaving
        self.repeated = False

    def bind(self, session: FetchSession, leader_end_offset: int) -> None:
        """`session` is now the one that counts, and open. Under a new broker epoch nothing that the old one
        acknowledged is taken over: its log may have lost its tail (RULES 2.3, 7.2). The lag of an ISR member goes on
        counting from when it was last caught up."""
        mine = self.session
        assert mine is None or not self.is_older(session), (session, mine)
        if mine is not session:
            self.unnamed(leader_end_offset)  # a session begins with nothing (4.10)
        if mine is not None and session.broker_epoch > mine.broker_epoch:
            self.log_end_offset = UNKNOWN_OFFSET
            self.log_start_offset = UNKNOWN_OFFSET
            self.in_sync_since_ms = max(self.in_sync_since_ms, self._last_caught_up_ms)
            self._last_caught_up_ms = NEVER_MS
            self._last_fetch_ms = self._awaited_since_ms = NEVER_MS
            self._last_fetch_leader_end_offset = self._awaited_end_offset = 0
        self.session = session
        self.closed_since_ms = None

    def reopen(self, session: FetchSession, leader_end_offset: int) -> bool:
        """A stream opened. Whether it takes the place of the one that fetched this partition: the same fetcher's, or
        any of a newer registration of the broker (RULES 5.6: closed and reopened)."""
        mine = self.session
        if mine is None or self.is_older(session):
            return False
        if session.broker_epoch == mine.broker_epoch and session.fetcher_id != mine.fetcher_id:
            return False
        self.bind(session, leader_end_offset)
        return True

    def close(self, session: FetchSession, now_ms: int) -> bool:
        """A stream closed. Whether it was the one that counts here."""
        if self.session is None or self.session != session or self.closed_since_ms is not None:
            return False
        self.closed_since_ms = now_ms
        return True

    def fetched(
        self, acked_offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int, repeated: bool
    ) -> None:
        """A fetch that agrees with the leader's log. Kafka's two rules of `updateLogReadResult`, with the acked
        offset in the fetch offset's place (RULES 4.5, 5.6); and, as a pipelined fetch acknowledges not what the fetch
        before it returned but what an earlier one did, the second rule also for the leader's log end at that earlier
        one. (By the two alone a follower that keeps two fetches in flight under steady load would never have caught
        up.)"""
        self.settle(leader_end_offset)
        if acked_offset >= leader_end_offset:
            caught_up_ms = now_ms
        elif acked_offset >= self._last_fetch_leader_end_offset:
            caught_up_ms = self._last_fetch_ms
        elif acked_offset >= self._awaited_end_offset:
            caught_up_ms = self._awaited_since_ms
        else:
            caught_up_ms = NEVER_MS
        self._last_caught_up_ms = max(self._last_caught_up_ms, caught_up_ms)
        if acked_offset >= self._awaited_end_offset:
            self._awaited_end_offset = leader_end_offset
            self._awaited_since_ms = now_ms
        self._last_fetch_leader_end_offset = leader_end_offset
        self._last_fetch_ms = self._heard_ms = now_ms
        self.log_end_offset = acked_offset
        self.log_start_offset = log_start_offset
        self._fetched_since_leaving = True
        self.repeated = repeated

    def silent_from_ms(self, silent_ms: int) -> int:
        """Returns from when on an ISR member that does not fetch has not done so for `silent_ms`, counted from the
        election or its joining at least."""
        last_fetch_ms = self._last_fetch_ms
        if self.session is not None and self.repeated:
            last_fetch_ms = max(last_fetch_ms, self.session.last_request_ms)
        return max(last_fetch_ms, self.in_sync_since_ms) + silent_ms

    def lags_from_ms(self, replica_lag_time_max_ms: int, leader_end_offset: int) -> int:
        """Returns from when on an ISR member that is not caught up again has lagged for too long (RULES 5.6)."""
        return max(self.last_caught_up_ms(leader_end_offset), self.in_sync_since_ms) + replica_lag_time_max_ms + 1
