"""A process that appends and deletes old segments is killed with SIGKILL at random instants: its log reopens to a
prefix of what was appended, with all that was answered in it (invariant 7); the log start has not gone back, and
neither producers whose records are gone nor the fence are forgotten (RULES 3.1)."""

from __future__ import annotations

import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.inspect.verify import verify
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.records import decode, iter_batches

KEY = PartitionKey(b"t" * 16, 0)
CONFIG = LogConfig(segment_bytes=16 << 10, index_interval_bytes=500)

# Appends batches whose records count up from the log end on, and tells each log end offset once an append has returned.
CHILD = """
import random, sys
from pathlib import Path
from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.records import Record, encode_rows

directory, epoch, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
key, chance = PartitionKey(b"t" * 16, 0), random.Random(seed)
config = LogConfig(segment_bytes=16 << 10, index_interval_bytes=500, retention_ms=-1, retention_bytes=40 << 10)
manager = LogManager([directory], config, broker_id=1)
manager.load()
manager.create("t", key, {})
manager.logs.log_dirs[0].record_boot()
manager.logs.log_dirs[0].fences.record({key: Fence(epoch, Role.LEADER, "rm", str(epoch))})
log = manager.logs.get(key).log
log.become_leader(epoch)
sequence = 0
print("fenced", epoch, flush=True)
while True:
    base, count = log.log_end_offset, chance.randint(1, 20)
    records = [Record(0, base + n, b"k", b"%d" % (base + n) * chance.randint(1, 30), ()) for n in range(count)]
    batch = encode_rows(records, producer_id=epoch, producer_epoch=0, base_sequence=sequence)
    log.append_as_leader(batch, epoch, base, 0)
    sequence += count
    print("end", log.log_end_offset, flush=True)
    if chance.random() < 0.05:
        log.offsets.raise_high_watermark(log.log_end_offset - chance.randint(0, 50))
        manager.retain(manager.logs.get(key), 0)
        log.remove_deleted()
        print("start", log.log_start_offset, flush=True)
    if chance.random() < 0.01:
        log.flush()
        manager.logs.write_checkpoints(manager.logs.log_dirs[0])
"""


class Told(NamedTuple):
    log_start_offset: int
    log_end_offset: int


def run_and_kill(directory: Path, epoch: int, chance: random.Random) -> Told:
    """The last offsets that the child has told of; 0 where it has not."""
    command = [sys.executable, "-c", CHILD, str(directory), str(epoch), str(chance.random())[2:8]]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        ready, _, _ = select.select([child.stdout], [], [], 30)
        assert ready, "the child did not start"
        assert child.stdout.readline() == b"fenced %d\n" % epoch
        deadline = time.monotonic() + chance.uniform(0.01, 0.3)
        lines = []
        while time.monotonic() < deadline:
            lines.append(child.stdout.readline())
    finally:
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
    lines += rest.split(b"\n")[:-1]
    told = {b"start": 0, b"end": 0}
    told.update((what, int(offset)) for what, offset in (line.split() for line in lines))
    return Told(told[b"start"], told[b"end"])


@pytest.mark.timeout(90)
def test_killed_while_appending(tmp_path: Path) -> None:
    chance = random.Random(7)
    start = answered = 0
    ends: dict[int, int] = {}  # last offset of each child's producer
    for epoch in range(1, 7):
        told = run_and_kill(tmp_path, epoch, chance)
        start, answered = max(start, told.log_start_offset), max(answered, told.log_end_offset)
        damaged = [problem for file in verify(tmp_path) for problem in file.problems]
        assert all("position" in problem for problem in damaged), damaged  # the last append may be cut off
        manager = LogManager([tmp_path], CONFIG, broker_id=1)
        manager.load()
        assert not manager.logs.log_dirs[0].clean
        assert not manager.logs.log_dirs[0].tail_lost  # a killed process loses nothing (RULES 7.2)
        hosted = manager.logs.get(KEY)
        assert hosted.fence == Fence(epoch, Role.LEADER, "rm", str(epoch))
        log = hosted.online()
        assert log.log_end_offset >= answered
        assert log.log_start_offset >= start
        start = expected = log.log_start_offset
        while expected < log.log_end_offset:
            for position, header in iter_batches(content := log.read(expected, -1, 1 << 20)):
                assert header.base_offset <= expected < header.next_offset
                for record in decode(content, position).records():
                    assert record.offset == record.timestamp
                expected = header.next_offset
        assert [entry.leader_epoch for entry in log.epochs.entries][-1] == epoch
        ends[epoch] = log.log_end_offset - 1
        for producer_id, last_offset in ends.items():
            producer = log.producers.get(producer_id)
            assert producer is not None
            assert producer.batches[-1].last_offset == last_offset
        answered = log.log_end_offset
        manager.unlock()
    assert start > 0
