"""The mark of a broker that shuts down: when it was set stands in every later registration (RULES 7.8)."""

from __future__ import annotations

from typing import Any

from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.replica_manager.membership.liveness import Liveness


class Registrar:
    """Each update is one revision of etcd."""

    def __init__(self) -> None:
        self.registration = BrokerRegistration(1, "b1:1", "x", "y", tail_lost=True)
        self.broker_epoch = 10
        self.updated_at = 10

    async def update(self, registration: BrokerRegistration) -> bool:
        self.registration = registration
        self.updated_at += 1
        return True


async def test_what_is_written_after_the_mark_says_when_that_was() -> None:
    nothing: Any = None
    liveness = Liveness(
        nothing,
        nothing,
        Keys("c"),
        listeners=nothing,
        internal_listener="",
        rack="",
        session_timeout_ms=1,
        registered=nothing,
        failed=nothing,
    )
    registrar: Any = Registrar()
    liveness._registrar = registrar
    await liveness._update(offline_log_reports=1)
    assert registrar.registration.leaving_since == 0
    await liveness.announce_shutdown()
    assert (registrar.registration.shutting_down, registrar.updated_at) == (True, 12)
    await liveness._update(offline_log_reports=2)
    assert registrar.registration.leaving_since == 12
    assert await liveness._ordinary(10)
    assert (registrar.registration.tail_lost, registrar.registration.leaving_since) == (False, 12)
