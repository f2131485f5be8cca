"""A process that appends is killed with SIGKILL at random instants: its log reopens to a prefix of what was appended,
with all that was answered in it (invariant 7), and the fence is not forgotten (RULES 3.1)."""

from __future__ import annotations

import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence, Role
from highwater.log_storage.log_manager import LogManager
from highwater.metadata.models import PartitionKey
from highwater.records import decode, iter_batches

KEY = PartitionKey(b"t" * 16, 0)
CONFIG = LogConfig(segment_bytes=16 << 10, index_interval_bytes=500)

# Appends batches whose records count up from the log end on, and tells each log end offset once an append has returned.
CHILD = """
import random, sys
from pathlib import Path
from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence, Role
from highwater.log_storage.log_manager import LogManager
from highwater.metadata.models import PartitionKey
from highwater.records import Record, encode_rows

directory, epoch, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
key, chance = PartitionKey(b"t" * 16, 0), random.Random(seed)
manager = LogManager([directory], LogConfig(segment_bytes=16 << 10, index_interval_bytes=500), broker_id=1)
manager.load()
manager.create("t", key, {})
manager.log_dirs[0].record_boot()
manager.log_dirs[0].fences.record({key: Fence(epoch, Role.LEADER, "rm", str(epoch))})
log = manager.get(key).log
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
    if chance.random() < 0.01:
        log.flush()
        manager.write_checkpoints(manager.log_dirs[0])
"""


def run_and_kill(directory: Path, epoch: int, chance: random.Random) -> int:
    """The last log end offset that the child has told of."""
    command = [sys.executable, "-c", CHILD, str(directory), str(epoch), str(chance.random())[2:8]]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        ready, _, _ = select.select([child.stdout], [], [], 30)
        assert ready, "the child did not start"
        assert child.stdout.readline() == b"fenced %d\n" % epoch
        deadline = time.monotonic() + chance.uniform(0.01, 0.3)
        told = 0
        while time.monotonic() < deadline:
            told = int(child.stdout.readline().split()[1])
    finally:
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
    lines = [line for line in rest.split(b"\n")[:-1] if line.startswith(b"end ")]
    return int(lines[-1].split()[1]) if lines else told


@pytest.mark.timeout(90)
def test_killed_while_appending(tmp_path: Path) -> None:
    chance = random.Random(7)
    answered = 0
    for epoch in range(1, 7):
        answered = max(answered, run_and_kill(tmp_path, epoch, chance))
        manager = LogManager([tmp_path], CONFIG, broker_id=1)
        manager.load()
        assert not manager.log_dirs[0].clean
        assert not manager.log_dirs[0].tail_lost  # a killed process loses nothing (RULES 7.2)
        hosted = manager.get(KEY)
        assert hosted.fence == Fence(epoch, Role.LEADER, "rm", str(epoch))
        log = hosted.online()
        assert log.log_end_offset >= answered
        expected = 0
        while expected < log.log_end_offset:
            for position, header in iter_batches(content := log.read(expected, -1, 1 << 20)):
                assert header.base_offset == expected
                for record in decode(content, position).records():
                    assert record.offset == record.timestamp == expected
                    expected += 1
        assert [entry.leader_epoch for entry in log.epochs.entries][-1] == epoch
        last = log.producers.get(epoch)
        assert last is not None
        assert last.batches[-1].last_offset == log.log_end_offset - 1
        answered = log.log_end_offset
        manager.unlock()
