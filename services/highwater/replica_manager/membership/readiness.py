"""The rule for when this broker may say that it is ready (RULES 8.6): a rolling restart then goes on to the next one.
Pure; the time is an argument.

    UNKNOWN --told everything, all in sync, for SETTLE_MS--> READY
       |                                                       |
       +--nothing gained for `max_wait_ms`--> READY            +--another replica falls out of its ISR--> UNKNOWN

Only an answer of the active controller moves it; a new registration begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

# A leader takes a follower whose session is closed out of the ISR after half a second (RULES 5.6): a replica that was
# restarted faster than that is in an ISR that it is about to leave.
SETTLE_MS = 1_000
ASK_MS = 500  # while it is not ready
ASK_READY_MS = 5_000


@dataclass(frozen=True, slots=True)
class Standing:
    """The active controller's answer about one registration."""

    told: bool  # it has answered, without an error, for all that it hosts
    out_of_sync: int  # replicas assigned to it that are outside their ISRs
    sample: tuple[tuple[str, int], ...] = ()  # (topic, partition), some of those in the way


@dataclass(frozen=True, slots=True)
class GaveUp:
    """It is ready although something is in the way, and has been for `waited_ms`."""

    standing: Standing
    waited_ms: int


class Readiness:
    """Invariant: `ready` turns true in `answered` alone, and where it is true the last answer had no more replicas out
    of sync than were excused."""

    def __init__(self, max_wait_ms: int) -> None:
        self._max_wait_ms = max_wait_ms
        self._stopping = False
        self._broker_epoch: int | None = None  # None: not registered
        self._begin()

    def _begin(self) -> None:
        self._ready = False
        self.standing: Standing | None = None  # the last answer; None before the first
        self._answered_ms = 0
        self._ask_from_ms = 0
        self._sound_since_ms: int | None = None  # at each answer from then on nothing was in the way
        self._least: int | None = None  # replicas out of sync at best since it waits; None: nothing is waited for
        self._waited_ms = 0  # since the last gain, while a controller answered
        # What is not waited for any more.
        self._excused_untold = False
        self._excused_out_of_sync = 0

    @property
    def ready(self) -> bool:
        return self._ready and not self._stopping

    @property
    def out_of_sync(self) -> int:
        """Replicas assigned here that are outside their ISRs, as the controller last said."""
        return 0 if self.standing is None else self.standing.out_of_sync

    def registered(self, broker_epoch: int | None) -> None:
        """The present registration; another one than before has been told nothing."""
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            self._begin()

    def stopping(self) -> None:
        """The broker is about to stop: it is ready no more."""
        self._stopping = True

    def question(self, now_ms: int) -> int | None:
        """The broker epoch to ask the controller about now; None where there is nothing to ask, or not yet."""
        return None if self._stopping or now_ms < self._ask_from_ms else self._broker_epoch

    def unanswered(self, now_ms: int) -> None:
        """No controller acts, or the one that does knows nothing of this registration: nothing turns true."""
        self._sound_since_ms = None
        self._ask_from_ms = now_ms + ASK_MS

    def answered(self, broker_epoch: int, standing: Standing, now_ms: int) -> GaveUp | None:
        """The controller's answer to `question`. Returns what is not waited for any more, when that begins."""
        if broker_epoch != self._broker_epoch:
            return None  # of an earlier registration
        elapsed_ms = min(now_ms - self._answered_ms, 2 * ASK_MS)  # a time without a controller does not count
        before, self.standing, self._answered_ms = self.standing, standing, now_ms
        if self._is_sound(standing):
            self._settle(standing, now_ms)
            gave_up = None
        else:
            gave_up = self._wait(before, standing, elapsed_ms)
        self._ask_from_ms = now_ms + (ASK_READY_MS if self._ready else ASK_MS)
        return gave_up

    def _is_sound(self, standing: Standing) -> bool:
        return (standing.told or self._excused_untold) and standing.out_of_sync <= self._excused_out_of_sync

    def _settle(self, standing: Standing, now_ms: int) -> None:
        self._least = None
        # What has come back is waited for when it falls out again.
        self._excused_untold = not standing.told
        self._excused_out_of_sync = standing.out_of_sync
        if self._sound_since_ms is None:
            self._sound_since_ms = now_ms
        if now_ms - self._sound_since_ms >= SETTLE_MS:
            self._ready = True

    def _wait(self, before: Standing | None, standing: Standing, elapsed_ms: int) -> GaveUp | None:
        self._ready = False
        self._sound_since_ms = None
        self._excused_untold, self._excused_out_of_sync = False, 0
        told_now = before is not None and standing.told and not before.told
        if self._least is None or standing.out_of_sync < self._least or told_now:
            self._least, self._waited_ms = standing.out_of_sync, 0
        else:
            self._waited_ms += elapsed_ms
        if self._waited_ms < self._max_wait_ms:
            return None
        self._ready, self._least = True, None
        self._excused_untold, self._excused_out_of_sync = not standing.told, standing.out_of_sync
        return GaveUp(standing, self._waited_ms)
