"""Asks the active controller how this broker stands, and says by its health whether it is ready (RULES 8.6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from highwater.replica_manager.membership.readiness import Readiness, Standing
from highwater.telemetry.log import get_logger, pairs

_log = get_logger("replica_manager.readiness")

READY = "ready"


class ReadinessReport:
    """`report` and `ask` are to be called again and again."""

    def __init__(
        self,
        readiness: Readiness,
        *,
        broker_epoch: Callable[[], int | None],
        ask: Callable[[int], Awaitable[Standing | None]],
        say: Callable[[str, bool], Awaitable[None]],
        now_ms: Callable[[], int],
    ) -> None:
        """`ask` puts the question about a registration, by its epoch, to the active controller. `say` sets a name of
        the health."""
        self._readiness = readiness
        self._broker_epoch = broker_epoch
        self._ask_controller = ask
        self._say = say
        self._now_ms = now_ms
        self._said: bool | None = None

    async def report(self) -> None:
        """The health name "ready"."""
        self._readiness.registered(self._broker_epoch())
        ready = self._readiness.ready
        if ready != self._said:
            await self._say(READY, ready)
            if self._said is not None:
                _log.info("ready %s", pairs(ready=ready, **_in_the_way(self._readiness.standing)))
            self._said = ready

    async def ask(self) -> None:
        """Puts the question where one is due."""
        readiness = self._readiness
        broker_epoch = readiness.question(self._now_ms())
        if broker_epoch is None:
            return
        standing = await self._ask_controller(broker_epoch)
        if standing is None:
            readiness.unanswered(self._now_ms())
            return
        gave_up = readiness.answered(broker_epoch, standing, self._now_ms())
        if gave_up is not None:
            _log.warning(
                "ready although replicas are not in sync, or cannot be hosted: they are not waited for any longer %s",
                pairs(waited_ms=gave_up.waited_ms, **_in_the_way(gave_up.standing)),
            )
        await self.report()


def _in_the_way(standing: Standing | None) -> dict[str, object]:
    if standing is None:
        return {}
    named = ",".join(f"{topic}-{partition}" for topic, partition in standing.sample)
    return {"told": standing.told, "out_of_sync": standing.out_of_sync, "partitions": named}
