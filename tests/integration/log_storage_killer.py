"""Kills log-storages: forks a child that appends, rolls, flushes, compacts, retains, truncates and restarts cleanly,
sends it SIGKILL at a random instant, opens what it left, checks it, and starts over on the same directory.

    python log_storage_killer.py DIRECTORY KILLS SECONDS SEED

It stops after so many kills, or seconds. Run in a process of its own: a child is a fork, so that hundreds of them cost
little.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import struct
import sys
import time
import traceback
from pathlib import Path

from highwater.log_storage.compaction.cleaner_job import PassLimits
from highwater.log_storage.compaction.cleaner_process import run_pass
from highwater.log_storage.compaction.cleaner_selection import CleanableRange
from highwater.log_storage.compaction.segment_swap import clean_job, swap_in
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.partition import PartitionKey
from highwater.records import Record, decode, encode_rows, iter_batches

KEY = PartitionKey(b"t" * 16, 0)
CONFIG = LogConfig(segment_bytes=8 << 10, index_interval_bytes=500, retention_bytes=48 << 10, retention_ms=-1)
KEYS = 7
KEPT = 60  # records above the high watermark at most

# What a child tells: something is about to happen, or has happened, up to an offset.
TOLD = struct.Struct(">cq")
READY, APPENDED, STARTS, CUTTING, CUT = b"r", b"a", b"s", b"c", b"C"


class Child:
    """Works on the log until it is killed."""

    def __init__(self, directory: Path, generation: int, seed: int, pipe: int) -> None:
        self.directory = directory
        self.generation = generation
        self.chance = random.Random(seed)
        self.pipe = pipe
        self.open()

    def open(self) -> None:
        self.manager = LogManager([self.directory], CONFIG, broker_id=1)
        self.manager.load()
        self.manager.create("t", KEY, {})
        self.manager.logs.log_dirs[0].record_boot()
        self.log = self.manager.logs.get(KEY).online()
        self.log.become_leader(self.generation)

    def tell(self, what: bytes, offset: int) -> None:
        os.write(self.pipe, TOLD.pack(what, offset))

    def run(self) -> None:
        self.tell(READY, self.log.log_end_offset)
        works = [self.append, self.checkpoint, self.clean, self.retain, self.truncate, self.restart]
        while True:
            self.chance.choices(works, [70, 8, 8, 6, 6, 2])[0]()

    def append(self) -> None:
        batches, base = [], self.log.log_end_offset
        for _ in range(self.chance.randint(1, 3)):
            count = self.chance.randint(1, 8)
            size = self.chance.randint(1, 60)
            records = [Record(0, n, b"%d" % (n % KEYS), b"%d." % n * size, ()) for n in range(base, base + count)]
            batches.append(encode_rows(records))
            base += count
        self.log.append_as_leader(b"".join(batches), self.generation, self.log.log_end_offset, 0)
        self.tell(APPENDED, self.log.log_end_offset)
        self.log.offsets.raise_high_watermark(self.log.log_end_offset - self.chance.randint(0, KEPT))

    def checkpoint(self) -> None:
        self.log.flush()
        self.manager.logs.write_checkpoints(self.manager.logs.log_dirs[0])

    def clean(self) -> None:
        self.checkpoint()
        log = self.log
        stable = min(log.recovery_point, log.high_watermark)
        ends = [segment.base_offset for segment in log.segments[1:] if segment.base_offset <= stable]
        if ends:
            job, present = clean_job(log, CleanableRange(log.segments[0].base_offset, ends[-1]), 0)
            run_pass(job, PassLimits(), lambda group: self.swap_in(group, present), lambda _: None)
            log.remove_deleted()

    def swap_in(self, group: object, present: object) -> None:
        assert swap_in(self.log, group, present)  # type: ignore[arg-type]

    def retain(self) -> None:
        self.manager.retain(self.manager.logs.get(KEY), 0)
        self.tell(STARTS, self.log.log_start_offset)
        self.log.remove_deleted()

    def truncate(self) -> None:
        offset = self.chance.randint(self.log.high_watermark, self.log.log_end_offset)
        try:
            cut = self.log.truncation.cut_for(offset, -1)
        except LogError:  # the high watermark is within a batch
            return
        self.tell(CUTTING, cut)
        self.manager.truncate(self.manager.logs.get(KEY), offset, -1)
        self.tell(CUT, self.log.log_end_offset)

    def restart(self) -> None:
        self.manager.close()
        self.open()


def run_and_kill(directory: Path, generation: int, chance: random.Random) -> list[tuple[bytes, int]]:
    """What the child has told."""
    reading, writing = os.pipe()
    seed = chance.getrandbits(32)
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            Child(directory, generation, seed, writing).run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        first = told.read(TOLD.size)
        time.sleep(chance.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"child {generation}, seed {seed}, ended by itself"
        rest = told.read()
    whole = (first + rest)[: len(first + rest) // TOLD.size * TOLD.size]
    return list(TOLD.iter_unpack(whole))


def check(directory: Path, told: list[tuple[bytes, int]], known: tuple[int, int]) -> tuple[int, int]:
    """Log start and log end as they are now; `known` are those of before. Invariants 7 and 8."""
    start, end = known
    for what, offset in told:
        if what == STARTS:
            start = offset
        elif what in (CUTTING, CUT):
            end = min(end, offset)
        else:
            end = offset
    manager = LogManager([directory], CONFIG, broker_id=1)
    manager.load()
    log = manager.logs.get(KEY).online()
    assert log.log_start_offset >= start, (log.log_start_offset, start)
    assert log.log_end_offset >= end, (log.log_end_offset, end)
    _check_records(log)
    state = log.log_start_offset, log.log_end_offset
    manager.unlock()
    return state


def _check_records(log: Log) -> None:
    present: set[int] = set()
    expected = log.log_start_offset
    while expected < log.log_end_offset:
        content = log.read(expected, -1, 1 << 20)
        if not content:
            break
        for position, header in iter_batches(content):
            assert header.next_offset > expected
            for record in decode(content, position).records():
                assert record.offset == record.timestamp
                assert (record.value or b"").startswith(b"%d." % record.offset)
                present.add(record.offset)
            expected = header.next_offset
    for offset in range(log.log_start_offset, log.log_end_offset):
        if offset not in present:  # compacted: a later record has its key
            later = range(offset + KEYS, log.log_end_offset, KEYS)
            assert any(other in present for other in later), f"offset {offset} is missing"


def main() -> None:
    logging.disable(logging.WARNING)
    directory, kills, seconds, seed = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    chance = random.Random(seed)
    known = (0, 0)
    deadline = time.monotonic() + seconds
    done = 0
    while done < kills and time.monotonic() < deadline:
        done += 1
        told = run_and_kill(directory, done, chance)
        known = check(directory, told, known)
    print(f"killed {done} times, log from {known[0]} to {known[1]}")


if __name__ == "__main__":
    main()
