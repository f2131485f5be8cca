"""What exists in the cluster right now, under names that a recorded call can be kept with: topic ids, epochs, members
are others in each cluster. A message holds the names; `bind` puts the values in, just before it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

STEADY = "steady"
"""The topic of the clients that are watched, and their group."""
PREY = tuple(f"prey-{number}" for number in range(4))
"""The topics that are fuzzed."""
OFFSETS = "__consumer_offsets"
GROUP = "prey"

_FIRST = 2_000_000_000  # an int32, and nobody's boundary
_NUMBERS = (
    *("broker_epoch_1", "broker_epoch_2", "controller_epoch", "leader_epoch", "log_end", "high_watermark"),
    *("state_revision", "now_ms", "producer_id", "member_epoch"),
)
_TEXTS = ("member_id", "log_storage_incarnation", "log_dir", "address")
_ID_BYTES = 16


def number(name: str) -> int:
    return _FIRST + _NUMBERS.index(name)


def text(name: str) -> str:
    assert name in _TEXTS
    return f"@live:{name}"


def topic_id(topic: str) -> bytes:
    return f"@{topic}".encode().ljust(_ID_BYTES, b"@")[:_ID_BYTES]


@dataclass
class Live:
    """The values. A name without one stays as it is: as good as any broken value."""

    numbers: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)

    def copy(self) -> Live:
        return Live(dict(self.numbers), dict(self.texts), dict(self.topic_ids))

    def _values(self) -> dict[object, object]:
        return {
            **{number(name): value for name, value in self.numbers.items()},
            **{text(name): value for name, value in self.texts.items()},
            **{topic_id(name): value for name, value in self.topic_ids.items()},
        }

    def bind(self, message: Message) -> None:
        """In place."""
        _bind(message, self._values())


def is_list(value: object) -> bool:
    """Tells whether a field's value is that of a repeated field, of messages or of others."""
    return hasattr(value, "extend")


def _bind(message: Message, values: dict[object, object]) -> None:
    for descriptor, value in message.ListFields():
        name = descriptor.name
        if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
            continue  # of configurations: nothing of them is live
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value if is_list(value) else (value,):
                _bind(each, values)
        elif descriptor.type in (FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_BOOL):
            continue
        elif is_list(value):
            for index, each in enumerate(value):
                if each in values:
                    value[index] = values[each]
        elif value in values:
            setattr(message, name, values[value])
