"""What a rollup of an archive notes of a table's transactions, and what it makes of others in their place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from highwater.errors import UserError
from highwater.spark.pipelines.rollups.transactions_read import Planned, TransactionsRead, made_ms, planned_of

HOUR_MS = 3_600_000
PUT_BACK = r"the archive was put back to before version {}, as from a backup, and checkpoint .*: remove the checkpoint"


class LocalFiles:
    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names(self, directory: str) -> list[str]:
        return sorted(path.name for path in Path(directory).glob("*"))

    def read(self, path: str, at_most_bytes: int | None = None) -> bytes:
        return Path(path).read_bytes()[:at_most_bytes]

    def overwrite(self, path: str, content: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)

    def delete(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)


class Case:
    """A table and a checkpoint of its rollup, in a world whose clock goes an hour with each transaction."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "archive" / "_delta_log"
        self.backup = directory / "backup"
        self.checkpoint = directory / "checkpoint"
        self.log.mkdir(parents=True)
        (self.checkpoint / "offsets").mkdir(parents=True)
        self.hours = 0
        self.batch = -1

    def latest(self) -> int:
        return max(int(one.stem) for one in self.log.iterdir())

    def grow(self, transactions: int = 1) -> None:
        for _ in range(transactions):
            self.hours += 1
            version = len([*self.log.iterdir()])
            info = {"commitInfo": {"timestamp": self.hours * HOUR_MS, "txnId": f"{self.hours}"}}
            (self.log / f"{version:020d}.json").write_text(json.dumps(info) + "\n" + "{}\n" * 10)

    def keep(self) -> None:
        shutil.copytree(self.log, self.backup)

    def put_back(self) -> None:
        shutil.rmtree(self.log)
        shutil.copytree(self.backup, self.log)

    def plan(self, part: int | None = None) -> None:
        """As Spark does: up to the last transaction, or to a file in it."""
        self.batch += 1
        offset = {"reservoirVersion": self.latest() + (part is None), "index": -1 if part is None else part}
        settings = {"batchTimestampMs": self.hours * HOUR_MS + 1}
        lines = ["v1", json.dumps(settings), json.dumps({**offset, "isStartingVersion": False})]
        (self.checkpoint / "offsets" / f"{self.batch}").write_text("\n".join(lines))

    def start(self) -> TransactionsRead:
        read = TransactionsRead(
            LocalFiles(), str(self.checkpoint), LocalFiles(), str(self.log.parent), "the archive", self.latest
        )
        read.check()
        return read

    @property
    def noted(self) -> list[int]:
        return [int(path.name.partition("-")[0]) for path in (self.checkpoint / "rollup" / "read").glob("*")]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    case = Case(tmp_path)
    case.grow(3)
    return case


def test_a_table_that_grows_is_gone_on_with(case: Case) -> None:
    read = case.start()
    read.note()
    assert case.noted == []
    for part in (0, None, None):
        case.plan(part)
        read.note()
        assert case.noted == [case.latest()]
        read.note()
        case.start()
        case.grow(2)
    case.start()


@pytest.mark.parametrize("regrown", range(4))
@pytest.mark.parametrize("part", [0, None])
def test_a_table_that_was_put_back_is_found(case: Case, part: int | None, regrown: int) -> None:
    read = case.start()
    case.keep()
    case.grow()
    case.plan(part)
    read.note()
    case.put_back()
    case.grow(regrown)
    with pytest.raises(UserError, match=PUT_BACK.format(3)):
        case.start()
    case.plan()  # while it runs: it has not seen that it is another table
    if case.latest() > 3:
        with pytest.raises(UserError, match=PUT_BACK.format(3)):
            read.note()
        with pytest.raises(UserError, match=PUT_BACK.format(3)):
            case.start()


def test_a_table_that_was_put_back_to_what_was_read_or_later_is_gone_on_with(case: Case) -> None:
    read = case.start()
    case.plan()
    read.note()
    case.keep()
    case.grow(2)
    case.put_back()
    case.start()
    case.grow(4)
    case.start()


@pytest.mark.parametrize("noted", [True, False])
def test_a_crash_between_what_spark_plans_and_its_note(case: Case, noted: bool) -> None:
    """Or a checkpoint that is older than notes: the times tell."""
    read = case.start()
    if noted:
        case.plan()
        read.note()
    case.keep()
    case.grow()
    case.plan()
    case.start()  # goes on
    assert case.noted == [3]
    shutil.rmtree(case.checkpoint / "rollup")
    case.put_back()
    for _ in range(3):
        with pytest.raises(UserError, match=PUT_BACK.format(3)):
            case.start()
        case.grow()


def test_a_log_that_was_cleaned_up_is_gone_on_with(case: Case) -> None:
    read = case.start()
    case.plan()
    read.note()
    case.grow(2)
    for version in range(3):
        (case.log / f"{version:020d}.json").unlink()
    assert case.latest() == 4
    read = case.start()
    case.plan()
    read.note()
    assert case.noted == [4]


def test_a_note_of_a_micro_batch_that_spark_lost_is_forgotten(case: Case) -> None:
    """With the offsets, in a loss of power: it is planned anew."""
    read = case.start()
    case.plan()
    read.note()
    case.keep()
    case.grow()
    case.plan()
    read.note()
    (case.checkpoint / "offsets" / "1").unlink()
    case.batch = 0
    case.put_back()
    case.grow(2)
    read = case.start()
    case.plan()
    read.note()
    assert case.noted == [4]
    case.start()


def test_what_spark_writes_down_of_a_micro_batch() -> None:
    def offset(version: int, index: int, starting: bool = False) -> str:
        return json.dumps({"reservoirVersion": version, "index": index, "isStartingVersion": starting})

    def planned(*offsets: str, form: str = "v1") -> int:
        found = planned_of("\n".join([form, '{"batchTimestampMs":7}', *offsets]).encode(), "c", 3)
        assert found == Planned(found.version, 7)
        return found.version

    assert planned(offset(4, -1)) == planned(offset(4, -100)) == 3
    assert planned(offset(4, 0)) == planned(offset(4, -1, True)) == planned(offset(4, 9, True)) == 4
    assert planned("-", offset(4, 2), offset(3, 0)) == 4  # of a query that reads it several times
    assert planned("-") == planned(offset(0, -1)) == -1
    for broken in (b"", b"v1\n{}\n-", b'v1\n{"batchTimestampMs":7}\n{"lo'):
        with pytest.raises(UserError, match="offsets/3 in checkpoint c is not whole, as after a loss of power: remove"):
            planned_of(broken, "c", 3)
    with pytest.raises(UserError, match="offsets in Spark's format v2, .* leave spark.sql.streaming.offsetLog.form"):
        planned(offset(4, 0), form="v2")


def test_when_a_transaction_was_made() -> None:
    info = b'{"commitInfo":{"timestamp":7,"operation":"WRITE"}}'
    assert made_ms(info) == made_ms(b'{"add":{}}\n' + info + b'\n{"remove":{"pa') == 7
    assert made_ms(info[:20]) is made_ms(b'{"commitInfo":{}}') is made_ms(b"[]\n\xff") is None
