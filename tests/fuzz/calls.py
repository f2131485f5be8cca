"""One call, as it is drawn, kept in a file and sent."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from highwater.rpc.requests.request_limits import LIMITS

from . import batches
from .left_alone import TRUSTING, tame
from .live import Live, is_list
from .messages import MessageGenerator
from .rpcs import Rpc, rpcs, targets

ENDINGS = ("close", "cancel", "half")
"""How a call ends: its requests are ended and all of the answer is read; it is cancelled when everything is sent; or,
by hand over HTTP/2, its connection ends within the last message."""
_REPEATED = (257, 1_001, 10_001, 100_001)
_REPEATED_BY_PEERS = _REPEATED[:3]  # what peers ask for has no limit but what a broker hosts
_MOST_BYTES = 8 << 20
_MOST_BY_PEERS = 10_000
_TRIES = 100


@dataclass(frozen=True)
class Sent:
    """A message: what `live` names in it stands there by name. `repeat`: the first element of that field so many times
    more. `mutation`: the seed of what is done to its bytes afterwards; None: nothing."""

    message: bytes
    repeat: tuple[str, int] | None = None
    mutation: str | None = None

    def bound(self, rpc: Rpc, live: Live) -> bytes:
        """The bytes to send. Mutated they are left alone where they could do what is not to be done."""
        message = rpc.new_request()
        message.MergeFromString(self.message)
        live.bind(message)
        tame(rpc, message, live)
        plain = message.SerializeToString()
        if self.repeat is not None:
            name, count = self.repeat
            values: Any = getattr(message, name)
            if len(values):
                one = type(message)()
                one_value: Any = getattr(one, name)
                one_value.append(values[0])
                element = one.SerializeToString()
                plain += element * min(count, _MOST_BYTES // max(1, len(element)))
        if self.mutation is None:
            return plain
        mutated = _mutated(Random(self.mutation), plain)
        return mutated if _harmless(rpc, mutated, live) else plain


@dataclass(frozen=True)
class Call:
    server: str
    path: str
    sent: tuple[Sent, ...]
    ending: str = "close"

    @property
    def rpc(self) -> Rpc:
        return rpcs()[self.path]

    async def payloads(self, live: Live) -> list[bytes]:
        """The bytes to send. Those with many elements are made in a thread: it takes seconds, in which the clients that
        are watched would stand still with this process's loop."""
        if any(sent.repeat for sent in self.sent):
            return await asyncio.to_thread(self._bound, live.copy())
        return self._bound(live)

    def _bound(self, live: Live) -> list[bytes]:
        return [sent.bound(self.rpc, live) for sent in self.sent]

    def to_json(self) -> dict[str, Any]:
        messages = []
        for sent in self.sent:
            message = self.rpc.new_request()
            message.MergeFromString(sent.message)
            shown = text_format.MessageToString(message, as_one_line=True)
            messages.append({**asdict(sent), "message": base64.b64encode(sent.message).decode(), "shown": shown[:400]})
        return {"server": self.server, "path": self.path, "ending": self.ending, "sent": messages}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Call:
        sent = [
            Sent(base64.b64decode(each["message"]), tuple(each["repeat"]) if each["repeat"] else None, each["mutation"])
            for each in value["sent"]
        ]
        return cls(value["server"], value["path"], tuple(sent), value["ending"])


def draw(seed: int, number: int) -> Call:
    """The call of that number: one after the other is another RPC, at another server."""
    known = targets()
    server, rpc = known[number % len(known)]
    random = Random(f"{seed}:{number}")
    count = random.choice((1, 1, 2, 3, 6)) if rpc.client_streams else 1
    ending = random.choices(ENDINGS, (8, 2, 1))[0]
    first_is_right = random.random() < 0.5
    sent = [_draw_message(random, rpc, right=first_is_right and index == 0) for index in range(count)]
    return Call(server, rpc.path, tuple(sent), ending)


def largest(seed: int) -> Iterator[Call]:
    """Of every RPC, at each of its servers, and each list that it has: as many elements as may be."""
    for server, rpc in targets():
        message = rpc.new_request()
        for name in message.DESCRIPTOR.fields_by_name:
            if not is_list(getattr(message, name)):
                continue
            random = Random(f"{seed}:{server}:{rpc.path}:{name}")
            filled = next((each for _ in range(_TRIES) if len(getattr(each := _right(random, rpc), name))), None)
            if filled is None:
                continue
            most = LIMITS.get(type(message), {}).get(name, _MOST_BY_PEERS)
            repeat = (name, most - len(getattr(filled, name)))
            yield Call(server, rpc.path, (Sent(filled.SerializeToString(), repeat),))


def _right(random: Random, rpc: Rpc) -> Message:
    message = rpc.new_request()
    MessageGenerator(random, 0).fill(message)
    return message


def _draw_message(random: Random, rpc: Rpc, *, right: bool) -> Sent:
    message = rpc.new_request()
    MessageGenerator(random, 0 if right else random.choice((0, 0.05, 0.2, 1))).fill(message)
    repeat = mutation = None
    if not right and random.random() < 0.05:
        lists = [name for name in message.DESCRIPTOR.fields_by_name if is_list(getattr(message, name))]
        if lists:
            counts = _REPEATED_BY_PEERS if rpc.service in TRUSTING else _REPEATED
            name = random.choice(lists)
            # Most is asked for by as many as may be: one more is refused.
            most = LIMITS.get(type(message), {}).get(name, 0) - len(getattr(message, name))
            repeat = (name, random.choice((*counts, most) if most > 0 else counts))
    if not right and random.random() < 0.2:
        mutation = str(random.getrandbits(32))
    return Sent(message.SerializeToString(), repeat, mutation)


def _mutated(random: Random, data: bytes) -> bytes:
    kind = random.randrange(10)
    if kind == 0:
        return random.choice((b"", b"\xff", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", random.randbytes(200)))
    if kind == 1:
        return data + data
    if kind == 2:  # of a message within it: a length beyond the end
        return data + b"\x0a\xff\xff\xff\x7f"
    if kind == 3:  # groups within groups, which protobuf reads by recursion
        return data + b"\x0b" * random.choice((10, 99, 101, 5000))
    if kind == 4:  # a field of another type, and one that nobody knows
        return data + b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\xfa\x7f\x03abc"
    return batches.mutated(random, data)


def _harmless(rpc: Rpc, data: bytes, live: Live) -> bool:
    message: Message = rpc.new_request()
    try:
        message.MergeFromString(data)
    except DecodeError:
        return True
    before = message.SerializeToString(deterministic=True)
    tame(rpc, message, live)
    return message.SerializeToString(deterministic=True) == before


@dataclass
class Finding:
    """What was wrong, and the calls that were under way or just over when it was seen, oldest first."""

    problem: str
    seed: int
    calls: list[Call] = field(default_factory=list)
    read: tuple[str, bytes] | None = None
    """A reader's name and what it was given, where that is what was wrong."""

    @property
    def signature(self) -> str:
        """The same for what is wrong twice: of a traceback what was raised where, of a sentence its words."""
        lines = self.problem.splitlines()
        files = [line for line in lines if line.lstrip().startswith("File ")]
        raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
        return re.sub(r"\d+", "n", " ".join([*files[-1:], *raised[-1:]] or lines[:1]))

    def to_json(self) -> str:
        value = {"problem": self.problem, "seed": self.seed, "calls": [call.to_json() for call in self.calls]}
        if self.read is not None:
            value["read"] = [self.read[0], base64.b64encode(self.read[1]).decode()]
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Finding:
        value = json.loads(text)
        name, data = value.get("read", ("", ""))
        read = (name, base64.b64decode(data)) if name else None
        return cls(value["problem"], value["seed"], [Call.from_json(call) for call in value["calls"]], read)
