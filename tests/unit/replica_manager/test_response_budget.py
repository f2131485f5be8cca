"""The budget of fetch responses: never more than there is, in the order of arrival, replicas beside consumers."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from highwater.replica_manager.responses import response_budget
from highwater.replica_manager.responses.response_budget import Grant, ResponseBudget, ResponseShare, RoomWait

BATCH = 10


def share(max_bytes: int = 100, *, waits: bool = True) -> ResponseShare:
    return ResponseShare(max_bytes, least_bytes=BATCH, waits=waits)


def taken(share: ResponseShare, wanted_bytes: int) -> Grant:
    grant = share.take(wanted_bytes)
    assert grant is not None
    return grant


def test_what_is_taken_is_held_until_it_is_released() -> None:
    consumers = share()
    grant = taken(consumers, 30)
    assert (grant.size_bytes, consumers.held_bytes) == (30, 30)
    grant.settle(12)  # as much has been read
    assert consumers.held_bytes == 12
    grant.release()
    grant.release()
    assert consumers.held_bytes == 0


def test_a_few_that_are_not_read_leave_something_to_the_others() -> None:
    consumers = share(1 << 20)
    sizes = [taken(consumers, 1 << 20).size_bytes for _ in range(5)]
    assert sizes == [1 << 19, 1 << 18, 1 << 17, 1 << 16, 1 << 15]


def test_a_batch_that_is_larger_than_what_was_taken_counts() -> None:
    consumers = share()
    taken(consumers, 20).settle(500)
    assert consumers.held_bytes == 500
    assert consumers.take(1) is None


def test_those_that_wait_are_served_in_the_order_of_arrival() -> None:
    consumers, served = share(), list[tuple[str, int]]()
    holding = [taken(consumers, 50), taken(consumers, 25), taken(consumers, 10), taken(consumers, 10)]
    assert consumers.take(10) is None
    for name, wanted in (("large", 40), ("small", 1)):
        consumers.wait(wanted, lambda grant, name=name: served.append((name, grant.size_bytes)))  # type: ignore[misc]
    assert consumers.take(1) is None  # although there is room for that: others came first
    assert served == []
    holding[0].release()
    assert served == [("large", 16), ("small", 1)]
    assert len(consumers) == 0


def test_one_that_waits_no_more_makes_way() -> None:
    consumers, served = share(), list[Grant]()
    holding = taken(consumers, 10)
    holding.settle(95)
    waiting = consumers.wait(10, served.append)
    assert waiting is not None
    consumers.wait(5, served.append)
    assert served == []
    consumers.cancel(waiting)
    consumers.cancel(waiting)
    assert [grant.size_bytes for grant in served] == [5]


def test_one_that_gives_its_bytes_back_at_once_takes_nobodys_turn() -> None:
    consumers, served = share(), list[str]()
    holding = taken(consumers, 10)
    holding.settle(100)
    for name in ("a", "b", "c"):
        consumers.wait(10, lambda grant, name=name: (served.append(name), grant.release()))  # type: ignore[misc]
    holding.release()
    assert served == ["a", "b", "c"]
    assert (consumers.held_bytes, len(consumers)) == (0, 0)


def test_one_that_waited_in_vain_keeps_its_turn() -> None:
    consumers, served = share(), list[str]()
    holding = [taken(consumers, 10), taken(consumers, 10)]
    for each in holding:
        each.settle(50)
    first = consumers.wait(40, lambda _: served.append("first"))
    consumers.wait(40, lambda _: served.append("second"))
    assert first is not None
    consumers.cancel(first)
    consumers.wait(40, lambda _: served.append("first again"), first.turn)
    holding[0].settle(40)
    assert served == ["first again"]
    holding[1].release()
    assert served == ["first again", "second"]


def test_the_number_of_those_that_wait_is_bounded() -> None:
    consumers = share()
    taken(consumers, 10).settle(100)
    waiting = [consumers.wait(10, lambda _: None) for _ in range(response_budget.MAX_WAITS)]
    assert None not in waiting
    assert consumers.wait(10, lambda _: None) is None


def test_replicas_have_room_whatever_consumers_hold() -> None:
    budget = ResponseBudget(400, message_max_bytes=BATCH, waited=lambda granted: None)
    taken(budget.consumers, 10).settle(300)
    assert budget.consumers.take(1) is None
    assert taken(budget.replicas, 50).size_bytes == 50
    for _ in range(20):  # as many fetchers as there may be: each has room for a batch
        assert taken(budget.replicas, 50).size_bytes >= BATCH
    assert budget.consumers.held_bytes == 300


class Share(RuleBasedStateMachine):
    """Whatever happens, no more is granted than there is, and who waits does so for a reason."""

    def __init__(self) -> None:
        super().__init__()
        self.share = share(1_000)
        self.grants: list[Grant] = []
        self.waiting: list[RoomWait] = []

    @rule(wanted=st.integers(1, 2_000))
    def ask(self, wanted: int) -> None:
        grant = self.share.take(wanted)
        if grant is not None:
            assert min(wanted, BATCH) <= grant.size_bytes <= wanted
            self.grants.append(grant)
        else:
            waiting = self.share.wait(wanted, self.grants.append)
            assert waiting is not None
            self.waiting.append(waiting)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        if self.grants:
            grant = data.draw(st.sampled_from(self.grants))
            grant.settle(data.draw(st.integers(0, grant.size_bytes)))

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        if self.grants:
            self.grants.pop(data.draw(st.integers(0, len(self.grants) - 1))).release()

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if self.waiting:
            self.share.cancel(self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1))))

    @invariant()
    def holds(self) -> None:
        assert self.share.held_bytes == sum(grant.size_bytes for grant in self.grants) <= 1_000
        waiting = [each for each in self.waiting if not each.done]
        assert len(self.share) == len(waiting)
        assert not waiting or 1_000 - self.share.held_bytes < BATCH


TestShare = Share.TestCase
TestShare.settings = settings(max_examples=50, stateful_step_count=30)
