"""Encode and decode rates of `highwater.records` on one core: `python bench/records.py [--records N] [--json]`.

Records are JSON events of about 100 bytes, a batch holds 2,500 of them (250 KB, the size that suits the wire best).
Each figure is the best of several rounds, in thousands of records a second.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from highwater.client.producer.partitioner import murmur2, murmur2_column
from highwater.records import Codec, Record, decode, encode_arrays, encode_lists, encode_rows, iter_batches, verify

ROUNDS = 7
BATCH_RECORDS = 2_500
FEW_RECORDS = 10


def events(count: int) -> list[Record]:
    """JSON events with a key; neither all alike nor random."""
    start_ms = 1_700_000_000_000
    return [
        Record(
            i,
            start_ms + i // 3,
            b"user-%d" % (i * 7919 % 5003),
            b'{"event":"%s","user":%d,"page":"/products/%d","duration_ms":%d,"ok":%s}'
            % (
                (b"click", b"view", b"purchase")[i % 3],
                i * 7919 % 5003,
                i * 31 % 977,
                i * 104729 % 3001,
                b"true" if i % 11 else b"false",
            ),
        )
        for i in range(count)
    ]


def rate(work: Callable[[], object], records: int, seconds: float) -> float:
    """Records a second of the best of ROUNDS rounds, which together take about `seconds`."""
    work()
    best = float("inf")
    deadline = time.perf_counter() + seconds
    for done in range(10_000):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
        if done >= ROUNDS and time.perf_counter() > deadline:
            break
    return records / best


def measure(seconds: float) -> dict[str, float]:
    """Every figure by its name."""
    records = events(BATCH_RECORDS)
    timestamps, keys, values = ([record[column] for record in records] for column in (1, 2, 3))
    arrays = (pa.array(timestamps, pa.int64()), pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
    stamps = np.array(timestamps, dtype=np.int64)
    figures: dict[str, float] = {}

    def add(name: str, work: Callable[[], object], count: int = BATCH_RECORDS) -> None:
        figures[name] = rate(work, count, seconds)

    for codec in Codec:
        name = codec.name.lower()
        columns, rows = encode_arrays(*arrays, codec=codec), encode_rows(records, codec=codec)
        add(f"encode_arrays {name}", lambda codec=codec: encode_arrays(*arrays, codec=codec))  # type: ignore[misc]
        add(f"encode_lists {name}", lambda codec=codec: encode_lists(stamps, keys, values, codec=codec))  # type: ignore[misc]
        add(f"encode_rows {name}", lambda codec=codec: encode_rows(records, codec=codec))  # type: ignore[misc]
        add(f"columns to_arrow {name}", lambda columns=columns: decode(columns).to_arrow())  # type: ignore[misc]
        add(f"columns records {name}", lambda columns=columns: decode(columns).records())  # type: ignore[misc]
        add(f"rows records {name}", lambda rows=rows: decode(rows).records())  # type: ignore[misc]
        add(f"rows to_arrow {name}", lambda rows=rows: decode(rows).to_arrow())  # type: ignore[misc]
    few = records[:FEW_RECORDS]
    few_lists = [[record[column] for record in few] for column in (1, 2, 3)]
    few_rows, few_columns = encode_rows(few), encode_lists(*few_lists)  # type: ignore[arg-type]
    add("10 records: encode_rows", lambda: encode_rows(few), FEW_RECORDS)
    add("10 records: encode_lists", lambda: encode_lists(*few_lists), FEW_RECORDS)  # type: ignore[arg-type]
    add("10 records: rows records", lambda: decode(few_rows).records(), FEW_RECORDS)
    add("10 records: columns records", lambda: decode(few_columns).records(), FEW_RECORDS)
    batch = encode_arrays(*arrays, codec=Codec.LZ4)
    add("broker: header and CRC", lambda: [verify(batch, position, header) for position, header in iter_batches(batch)])
    add("murmur2_column", lambda: murmur2_column(arrays[1]))
    add("murmur2", lambda: [murmur2(key) for key in keys])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.2, help="time spent on each figure")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    figures = measure(arguments.seconds)
    if arguments.json:
        print(json.dumps({name: round(value) for name, value in figures.items()}, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:32}{value / 1e3:12,.0f} k records/s")


if __name__ == "__main__":
    main()
