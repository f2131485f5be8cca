from __future__ import annotations

from highwater.metadata.schema.models import IsrNotification
from highwater.metadata.state.isr_notifications import IsrNotificationCollector

FIRST, SECOND = (IsrNotification(1, 2, number, (("t", number),)) for number in (1, 2))


def test_nothing_is_due_while_there_is_nothing() -> None:
    collector = IsrNotificationCollector()
    assert collector.due_ms is None
    assert collector.take(10**9) == ()


def test_they_are_due_after_five_quiet_seconds() -> None:
    collector = IsrNotificationCollector()
    collector.add(FIRST, 0)
    collector.add(SECOND, 4_000)
    assert collector.take(8_999) == ()
    assert collector.take(9_000) == (FIRST, SECOND)
    assert collector.take(20_000) == ()


def test_without_quiet_they_are_due_after_a_minute() -> None:
    collector = IsrNotificationCollector()
    for now_ms in range(0, 61_000, 4_000):
        if collector.take(now_ms):
            break
        collector.add(FIRST, now_ms)
    assert now_ms == 60_000
