"""The cleaner's map from key to last offset, in bounded memory: hashes instead of keys (Kafka's SkimpyOffsetMap). Pure.

An open-addressing table of three words a slot: the two words of the hash (`low` 0: the slot is empty) and the offset.
A collision goes on at a distance that the hash's other half gives; the number of slots is prime, so every slot is
reached. All operations take a column of keys at a time: each round looks at one slot for every key that has not found
its own yet.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from highwater.log_storage.compaction.key_hash import KeyHashes

ENTRY_BYTES = 24
NOT_FOUND = -1

Offsets = npt.NDArray[np.int64]

_LOW, _HIGH, _OFFSET = range(3)
_LARGEST = (1 << 32) - 1  # slots; their numbers are computed in 64 bits from half a hash


class OffsetMap:
    """Offsets have to be put in rising order: of a key put twice the later one stays. `latest_offset` is up to the
    caller: below or at it, a key that is not in the map has no record in what the map was made from."""

    def __init__(self, memory_bytes: int, load_factor: float = 0.9, expected_keys: int | None = None) -> None:
        """Takes at most `memory_bytes`, less where `expected_keys` is an upper bound of what will be put. Raises
        `ValueError` where that is not room for a single key."""
        slots = min(memory_bytes // ENTRY_BYTES, _LARGEST)
        if expected_keys is not None:
            slots = min(slots, int(expected_keys / load_factor) + 16)
        self._slots = _prime_at_most(slots) if slots >= 2 else 0
        self.capacity = int(self._slots * load_factor)
        if self.capacity < 1:
            raise ValueError(f"{memory_bytes} bytes have no room for a key: raise log.cleaner.dedupe.buffer.size")
        self._table = np.zeros((self._slots, 3), dtype=np.uint64)
        self._count = 0
        self.latest_offset = NOT_FOUND

    def __len__(self) -> int:
        """Keys in the map."""
        return self._count

    @property
    def full(self) -> bool:
        return self._count >= self.capacity

    def put(self, hashes: KeyHashes, offsets: Offsets) -> int:
        """Takes in keys with their offsets, in rising order, as far as there is room; how many from the first on. A map
        that is full still takes keys that it has, up to the first that it has not."""
        total = len(offsets)
        done = 0
        while done < total:
            rest = KeyHashes(hashes.low[done:], hashes.high[done:])
            fits = total - done
            room = self.capacity - self._count
            if fits > room:
                new = np.flatnonzero(self.get(rest) == NOT_FOUND)
                if len(new) > room:
                    fits = int(new[room])
            if not fits:
                return done
            self._insert(rest.low[:fits], rest.high[:fits], offsets[done : done + fits])
            done += fits
        return done

    def get(self, hashes: KeyHashes) -> Offsets:
        """The offset last put for each key, `NOT_FOUND` where there is none."""
        found = np.full(len(hashes.low), NOT_FOUND, dtype=np.int64)
        low, high = hashes
        pending = np.arange(len(low))
        slots, steps = self._first_slots(low, high)
        while len(pending):
            entries = self._table[slots]
            same = (entries[:, _LOW] == low) & (entries[:, _HIGH] == high)
            found[pending[same]] = entries[same, _OFFSET].view(np.int64)
            on = ~same & (entries[:, _LOW] != 0)
            pending, low, high, steps = pending[on], low[on], high[on], steps[on]
            slots = self._next(slots[on], steps)
        return found

    def _insert(self, low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64], offsets: Offsets) -> None:
        """There is room for all of them. Equal keys go the same way from slot to slot, so they meet in one."""
        values = offsets.astype(np.uint64)
        slots, steps = self._first_slots(low, high)
        while len(slots):
            empty = np.flatnonzero(self._table[slots, _LOW] == 0)
            if len(empty):
                # Of several that want one slot the last to write has it: all its three words (numpy assigns repeated
                # indices in order).
                wanted = slots[empty]
                self._table[wanted, _LOW] = low[empty]
                self._table[wanted, _HIGH] = high[empty]
                self._table[wanted, _OFFSET] = empty.astype(np.uint64)
                self._count += int(np.count_nonzero(self._table[wanted, _OFFSET] == empty.astype(np.uint64)))
            same = (self._table[slots, _LOW] == low) & (self._table[slots, _HIGH] == high)
            self._table[slots[same], _OFFSET] = values[same]
            on = ~same
            low, high, values, steps = low[on], high[on], values[on], steps[on]
            slots = self._next(slots[on], steps)

    def _first_slots(
        self, low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The slots at which each key begins to look, and how far it goes from slot to slot."""
        half = np.uint64(32)
        slots = (low >> half) * np.uint64(self._slots) >> half
        steps = ((high >> half) * np.uint64(self._slots - 1) >> half) + np.uint64(1)
        return slots.astype(np.int64), steps.astype(np.int64)

    def _next(self, slots: npt.NDArray[np.int64], steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        after = slots + steps
        after[after >= self._slots] -= self._slots
        return after


def _prime_at_most(number: int) -> int:
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number
