"""The codecs that a batch's attributes name. `codecs.py` implements them."""

from __future__ import annotations

from enum import IntEnum


class Codec(IntEnum):
    """The codec of a batch's payload, as in bits 0-2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
