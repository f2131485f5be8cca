"""Decoders, as all formats have them: a column of bytes becomes a column of structs and the errors of bad values.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

SHOWN_CHARS = 40  # of a value, in what is said of it


class BadValue(ValueError):  # noqa: N818 - a reason, which becomes part of a sentence
    """Says why a value does not fit its schema: `field delay: "x" is no integer`."""


@dataclass(frozen=True, slots=True)
class Decoded:
    values: pa.StructArray  # null where the value is bad
    errors: Mapping[int, str] = field(default_factory=dict)  # why, by the place in the column


class ValueDecoder(Protocol):
    type: pa.StructType
    """Of what it makes: as `schema_types.plain` has it."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decodes values of which none is null."""


def decoded_column(decoder: ValueDecoder, values: pa.BinaryArray) -> Decoded:
    """Decodes a column. A tombstone stays null, and is no error."""
    if not values.null_count:
        return decoder.decode(values)
    places = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    found = decoder.decode(values.drop_null())
    taken = np.zeros(len(values), np.int64)
    taken[places] = np.arange(len(places))
    indices = pa.array(taken, mask=values.is_null().to_numpy(zero_copy_only=False))
    return Decoded(found.values.take(indices), {int(places[index]): why for index, why in found.errors.items()})


def shown(value: object) -> str:
    """A value for an error: cut short, on one line."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
