"""The work: 100-byte JSON events that lz4 shrinks about as much as real ones."""

from __future__ import annotations

import random

import pyarrow as pa

EVENT_BYTES = 100
_KINDS = ("view", "click", "order", "login", "leave")


def events(count: int, seed: int = 1) -> tuple[list[bytes], list[bytes]]:
    """Keys and values; every value is exactly 100 bytes of JSON."""
    rng = random.Random(seed)
    keys, values = [], []
    for number in range(count):
        user = f"user-{rng.randrange(10_000):05d}"
        kind, price = rng.choice(_KINDS), rng.randrange(100_000) / 100
        text = f'{{"id":{number},"user":"{user}","kind":"{kind}","price":{price},"note":"'
        keys.append(user.encode())
        values.append(f'{text}{"x" * (EVENT_BYTES - len(text) - 2)}"}}'.encode())
    return keys, values


def event_table(count: int, seed: int = 1) -> pa.Table:
    keys, values = events(count, seed)
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
