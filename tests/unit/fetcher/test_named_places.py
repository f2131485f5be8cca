"""A request says what the leader does not know; an answer is about what its request had left there (RULES 4.10)."""

from __future__ import annotations

import pytest

from highwater.fetcher.follower.actions import FetchPosition
from highwater.fetcher.follower.fetch_order import FetchOrder
from highwater.model.named_places import NamedPlaces
from highwater.model.partition import PartitionKey

A, B = (PartitionKey(letter * 16, 0) for letter in (b"a", b"b"))


def at(offset: int, generation: int = 1) -> FetchPosition:
    return FetchPosition(generation, 5, offset, offset, 5, 0)


class Session:
    """The places, and the positions of followers."""

    def __init__(self) -> None:
        self.positions: dict[PartitionKey, FetchPosition | None] = {A: at(10), B: at(20)}
        self.places: NamedPlaces[FetchPosition] = NamedPlaces()
        self.places.open(self.positions)

    def move(self, key: PartitionKey, position: FetchPosition | None) -> None:
        self.positions[key] = position
        self.places.changed(key)

    def says(self) -> tuple[dict[PartitionKey, FetchPosition], list[PartitionKey]] | None:
        said = self.places.next_request(self.positions.get, whole=None)
        return None if said is None else (said.named, list(said.forgotten))


@pytest.fixture
def session() -> Session:
    return Session()


def test_the_first_request_names_all_and_the_next_ones_what_has_moved(session: Session) -> None:
    assert session.says() == ({A: at(10), B: at(20)}, [])
    session.places.answered()
    assert session.says() == ({}, [])
    session.places.answered()
    session.places.changed(A)  # and is where it was
    session.move(B, at(25))
    assert session.says() == ({B: at(25)}, [])


def test_what_may_not_be_fetched_is_forgotten_once_and_named_when_it_may(session: Session) -> None:
    session.says()
    session.places.answered()
    session.move(A, None)
    assert session.says() == ({}, [A])
    session.places.changed(A)
    assert session.says() == ({}, [])
    session.move(A, at(10))
    assert session.says() == ({A: at(10)}, [])


def test_an_answer_is_about_the_places_as_its_request_left_them(session: Session) -> None:
    session.says()
    session.move(A, at(15))
    session.says()
    session.places.answered()
    assert session.places.asked(A) == at(10)
    assert session.places.latest(A) == at(15)
    session.places.answered()
    assert session.places.asked(A) == at(15)


def test_a_place_that_returned_data_is_named_again_even_where_it_is_the_same(session: Session) -> None:
    """The batches could not be told apart, and the follower asks for them again."""
    session.says()
    session.places.answered()
    session.places.returned_data(A)
    assert session.says() == ({A: at(10)}, [])
    session.places.answered()
    session.places.changed(A)
    assert session.says() == ({}, [])


def test_a_place_that_returned_data_was_named_anew_before_the_answer_came(session: Session) -> None:
    session.says()
    session.move(A, at(10, generation=2))
    session.says()
    session.places.answered()
    session.places.returned_data(A)
    assert session.says() == ({}, [])


def test_a_refused_place_is_the_leaders_no_more(session: Session) -> None:
    session.says()
    session.places.answered()
    session.places.refused(A)
    assert not session.places.joined({A: None}.get)
    assert session.places.joined(session.positions.get)
    assert session.says() == ({A: at(10)}, [])


def test_a_place_of_before_something_was_dropped_is_to_be_named_at_once(session: Session) -> None:
    session.says()
    session.places.answered()
    session.move(A, at(11))
    assert not session.places.joined(session.positions.get)  # it waits for the next request
    session.move(A, at(11, generation=2))
    assert session.places.joined(session.positions.get)


def test_a_removed_partition_is_forgotten_and_its_answers_are_nobodys(session: Session) -> None:
    session.says()
    del session.positions[A]
    session.places.removed(A)
    session.places.answered()
    assert session.places.asked(A) is None
    assert session.says() == ({}, [A])


def test_a_partition_that_comes_back_under_its_name_is_named_although_it_is_where_it_was(session: Session) -> None:
    session.says()
    session.places.removed(A)
    session.places.changed(A)
    session.places.answered()
    assert session.places.asked(A) is None
    assert session.says() == ({A: at(10)}, [])
    session.places.answered()
    assert session.places.asked(A) == at(10)


def test_nothing_is_asked_where_there_is_nothing_to_fetch(session: Session) -> None:
    session.says()
    session.places.answered()
    session.move(A, None)
    session.move(B, None)
    assert session.says() == ({}, [A, B])
    session.places.answered()
    assert session.says() is None


def test_a_new_session_begins_with_nothing(session: Session) -> None:
    session.says()
    session.places.answered()
    session.places.returned_data(A)
    session.places.open([B, A])
    assert session.places.asked(A) is None
    said = session.says()
    assert said is not None
    assert list(said[0]) == [B, A]


def test_a_leader_that_remembers_nothing_is_told_all_each_time(session: Session) -> None:
    order = FetchOrder()
    for key in (B, A):
        order.add(key)
    for _ in range(2):
        said = session.places.next_request(session.positions.get, whole=order)
        assert said is not None
        assert list(said.named) == [B, A]
        session.places.answered()
    session.positions[B] = None
    said = session.places.next_request(session.positions.get, whole=order)
    assert said is not None
    assert (list(said.named), list(said.forgotten)) == ([A], [B])
