"""The records of `__consumer_offsets`, byte for byte as Kafka 4.1 lays them out: its tools read them, and we read its.

A key begins with an int16 that says which kind of record it is; a value with an int16, its version. No value at all is
a tombstone. `decode` and `encode` are the whole of it; the kinds are in `keys` and `values`.
"""

from highwater.groups.records.codec import Record, decode, encode

__all__ = ["Record", "decode", "encode"]
