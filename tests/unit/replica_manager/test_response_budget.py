"""The budget of fetch responses: never more than there is, in the order of arrival, replicas beside consumers."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from highwater.replica_manager.responses import response_budget
from highwater.replica_manager.responses.response_budget import Grant, ResponseBudget, ResponseShare, RoomWait

BATCH = 10
CALLERS = ("", "a", "b", "c")


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


def test_one_caller_has_a_part_and_others_the_rest_at_once() -> None:
    consumers, served = share(), list[str]()
    holding = consumers.take(10, "a")
    assert holding is not None
    holding.settle(75)
    assert consumers.take(10, "a") is None
    for name in ("a1", "a2"):
        consumers.wait(10, lambda _, name=name: served.append(name), caller="a")  # type: ignore[misc]
    of_b = consumers.take(20, "b")  # although some of a's have waited for longer
    assert of_b is not None
    assert of_b.size_bytes == 10
    consumers.wait(5, lambda _: served.append("b"), caller="b")
    assert served == ["b"]
    holding.settle(65)
    assert served == ["b", "a1"]
    holding.release()
    assert served == ["b", "a1", "a2"]


def test_a_caller_leaves_room_within_its_part_too() -> None:
    consumers = share(1 << 20)
    grants = [consumers.take(1 << 20, "a") for _ in range(3)]
    assert [grant.size_bytes for grant in grants if grant is not None] == [1 << 18, 1 << 18, 1 << 17]
    assert consumers.held_by("a") < 3 << 18


def test_who_waits_for_its_own_part_goes_on_where_another_of_its_own_gives_up() -> None:
    consumers, served = share(), list[str]()
    holding = consumers.take(10, "a")
    others = consumers.take(10, "b")
    assert holding is not None
    assert others is not None
    holding.settle(75)
    others.settle(25)
    first = consumers.wait(10, lambda _: served.append("first"), caller="a")
    consumers.wait(10, lambda _: served.append("second"), caller="a")
    assert first is not None
    holding.settle(60)  # room for one
    holding.settle(75)  # a batch that is larger
    assert served == ["first"]
    first = consumers.wait(10, lambda _: served.append("third"), first.turn, caller="a")
    assert first is not None
    consumers.cancel(first)
    holding.settle(50)
    assert served == ["first", "second"]


def test_callers_without_bytes_and_waits_are_forgotten() -> None:
    consumers = share()
    holding = [consumers.take(10, "a"), consumers.take(10, "b")]
    assert None not in holding
    for each in holding:
        each.settle(50)  # type: ignore[union-attr]
    waiting = [consumers.wait(10, lambda _: None, caller=f"caller {number}") for number in range(50)]
    assert consumers.callers == 52
    assert consumers.take(10, "c") is None
    for wait in waiting:
        consumers.cancel(wait)  # type: ignore[arg-type]
    for each in holding:
        each.release()  # type: ignore[union-attr]
    assert (consumers.callers, consumers.held_bytes) == (0, 0)


def test_what_is_cancelled_before_its_turn_is_not_kept() -> None:
    consumers = share()
    grant = consumers.take(10, "a")
    assert grant is not None
    grant.settle(100)
    for caller in ("a", "b"):  # one waits for its part, the other for the share
        consumers.wait(10, lambda _: None, caller=caller)
        for _ in range(1_000):
            waiting = consumers.wait(10, lambda _: None, caller=caller)
            assert waiting is not None
            consumers.cancel(waiting)
    assert len(consumers) == 2
    assert len(consumers._line._heap) + len(consumers._callers["a"].parked._heap) < 200


class Share(RuleBasedStateMachine):
    """Whatever happens, no more is granted than there is, and who waits does so for a reason."""

    def __init__(self) -> None:
        super().__init__()
        self.share = share(1_000)
        self.grants: list[tuple[str, Grant]] = []
        self.waiting: list[tuple[str, RoomWait]] = []

    @rule(wanted=st.integers(1, 2_000), caller=st.sampled_from(CALLERS))
    def ask(self, wanted: int, caller: str) -> None:
        grant = self.share.take(wanted, caller)
        if grant is not None:
            assert min(wanted, BATCH) <= grant.size_bytes <= wanted
            self.grants.append((caller, grant))
        else:
            waiting = self.share.wait(wanted, lambda grant: self.grants.append((caller, grant)), caller=caller)
            assert waiting is not None
            self.waiting.append((caller, waiting))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        if self.grants:
            _, grant = data.draw(st.sampled_from(self.grants))
            grant.settle(data.draw(st.integers(0, grant.size_bytes)))

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        if self.grants:
            self.grants.pop(data.draw(st.integers(0, len(self.grants) - 1)))[1].release()

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if self.waiting:
            self.share.cancel(self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))[1])

    @rule(max_bytes=st.integers(100, 1_000))
    def resize(self, max_bytes: int) -> None:
        self.share.resize(max_bytes, BATCH)

    @invariant()
    def holds(self) -> None:
        assert self.share.held_bytes == sum(grant.size_bytes for _, grant in self.grants) <= 1_000
        held = {name: sum(grant.size_bytes for caller, grant in self.grants if caller == name) for name in CALLERS}
        assert all(held[name] == self.share.held_by(name) <= 750 for name in CALLERS if name)
        waiting = {name for name, each in self.waiting if not each.done}
        assert len(self.share) == sum(not each.done for _, each in self.waiting)
        assert self.share.callers == len({name for name in CALLERS if name and (held[name] or name in waiting)})
        is_full = self.share.max_bytes - self.share.held_bytes < BATCH
        part_bytes = int(self.share.max_bytes * 0.75)
        assert is_full or all(name and part_bytes - held[name] < BATCH for name in waiting)


TestShare = Share.TestCase
TestShare.settings = settings(max_examples=100, stateful_step_count=50)
