"""No error goes out without its sentence, and each has one name and one number."""

from __future__ import annotations

import pytest

from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto, to_proto
from highwater.v1 import common_pb2

REFUSALS = [code for code in ErrorCode if code is not ErrorCode.NONE]


@pytest.mark.parametrize("code", REFUSALS, ids=lambda code: code.name)
def test_a_code_alone_has_a_sentence_that_says_what_to_do(code: ErrorCode) -> None:
    error = to_proto(code)
    assert from_proto(error) is code
    what, _, remedy = error.message.partition(": ")
    assert len(what.split()) >= 4
    assert len(remedy.split()) >= 2
    assert error.retriable is code.retriable


def test_error_codes_are_those_of_the_contract_and_people_read_them_without_its_prefix() -> None:
    wire = {from_proto(common_pb2.Error(code=number)).name: name for name, number in common_pb2.ErrorCode.items()}
    assert wire == {code.name: f"ERROR_CODE_{code.name}" for code in ErrorCode}
    assert {code.name: code.value for code in ErrorCode} == {
        name.removeprefix("ERROR_CODE_"): number for name, number in common_pb2.ErrorCode.items()
    }


def test_what_is_known_takes_the_place_of_the_general_sentence() -> None:
    assert to_proto(ErrorCode.INVALID_REQUEST, "acks=7: take 0, 1 or -1").message == "acks=7: take 0, 1 or -1"


def test_a_success_has_no_sentence() -> None:
    assert to_proto(ErrorCode.NONE).message == ""


def test_every_code_has_another_sentence() -> None:
    assert len({code.sentence for code in REFUSALS}) == len(REFUSALS)
