"""Scenarios of consumer groups: the commands stand in the file, and what a coordinator does with them under each.

A word is said by a member as a client would: it names the epoch and the assignment that it was told last, and what it
has. `owns` says something else; `epoch` and `seen` make it lie. Pushes stand under the command that caused them. With
HIGHWATER_REWRITE_SCENARIOS set, the files are rewritten with what is printed now.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from highwater.groups.config import GroupConfig
from highwater.groups.offsets import fetched_offset
from highwater.groups.records import Record, decode
from highwater.groups.requests import (
    AlterOffsets,
    Answer,
    CommitAnswer,
    CommitOffsets,
    DeleteAnswer,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    FetchAnswer,
    FetchedOffset,
    FetchOffsets,
    GroupDescription,
    Heartbeat,
    ListAnswer,
    ListGroups,
    NamedPartition,
    OffsetToCommit,
    Outcome,
    Partitions,
    Refusal,
    Request,
    SessionAnswer,
    Subscription,
)
from highwater.groups.shard import GroupShard
from highwater.groups.topics import Topic, TopicImage
from highwater.model.partition import PartitionKey

SCENARIOS = sorted(Path(__file__).parent.glob("groups-*.txt"))
DAY_MS = 86_400_000
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "d": DAY_MS}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_groups(path: Path) -> None:
    played = []
    world = World()
    for line in path.read_text().splitlines():
        if line.startswith(("#", "=")) or not line.strip():
            played.append(line)
            if line.startswith("="):
                world = World()
        elif not line.startswith(" "):
            played.append(line)
            played += [f"    {output}" for output in world.command(line)]
    if os.environ.get("HIGHWATER_REWRITE_SCENARIOS"):
        path.write_text("\n".join(played) + "\n")
    assert played == path.read_text().splitlines()


@dataclass
class Known:
    """What a member knows of itself."""

    instance_id: str = ""
    epoch: int = 0
    seen: int = 0
    owned: Partitions = frozenset()


class World:
    """A coordinator, its log, and what its members were told."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.image = TopicImage()
        self.newest: dict[str, Topic] = {}  # by name
        self.former: dict[str, Topic] = {}  # those before them
        self.made = 0
        self.config = GroupConfig(session_timeout_ms=45_000, max_size=4, offset_metadata_max_bytes=16)
        self.members: dict[str, Known] = {}
        self.log: list[Record] = []
        self.base = 0
        self.held_at: int | None = None  # the high watermark, where it is held
        self.waiting: list[list[str]] = []
        self.output: list[str] = []
        self.shard = self.loaded()

    def command(self, line: str) -> list[str]:
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        self.output = []
        getattr(self, name.replace("-", "_"))(*(word for word in words if "=" not in word), **options)
        return self.output

    def loaded(self) -> GroupShard:
        shard = GroupShard(self.image, self.config)
        for record in self.log:
            shard.replay(record.key, record.value, record.timestamp_ms)
        for _ in shard.start(self.now_ms):
            pass
        return shard

    # Time, topics, the log

    def topic(self, name: str, partitions: str, **options: str) -> None:
        known = self.image.named(name)
        self.made += 1
        topic_id = known.topic_id if known else self.made.to_bytes(16, "big")
        racks = tuple(frozenset(each.split("+")) for each in options.get("racks", "").split(",") if each)
        self.change(name, Topic(topic_id, name, int(partitions), racks))

    def delete_topic(self, name: str) -> None:
        self.change(name, None)

    def unseen_topic(self, name: str, partitions: str) -> None:
        """Nobody tells the shard of it."""
        self.made += 1
        self.image.update({name: Topic(self.made.to_bytes(16, "big"), name, int(partitions))})

    def take_over_behind(self) -> None:
        """Another broker takes over, which knows the topics that were there before the last one of each name."""
        self.image = TopicImage(self.former.values())
        self.fail_over()

    def hear_of(self, name: str) -> None:
        self.image.update({name: self.newest[name]})
        for outcome in self.shard.topics_changed([name], self.now_ms):
            self.take(outcome)

    def change(self, name: str, topic: Topic | None) -> None:
        if topic is not None:
            before = self.newest.get(name, topic)
            if before.topic_id != topic.topic_id:
                self.former[name] = before
            self.newest[name] = topic
        self.image.update({name: topic})
        for outcome in self.shard.topics_changed([name], self.now_ms):
            self.take(outcome)

    def pass_time(self, span: str) -> None:
        number = span.rstrip("msd")
        self.now_ms += int(number) * UNITS_MS[span.removeprefix(number)]
        for outcome in self.shard.tick(self.now_ms):
            self.take(outcome)

    def beat_for(self, member: str, span: str) -> None:
        """Signs of life for days."""
        for _ in range(int(span.rstrip("d")) * (DAY_MS // 30_000)):
            self.beat(member)
            self.pass_time("30s")

    def hold_high_watermark(self) -> None:
        self.held_at = len(self.log)

    def commit_log(self) -> None:
        self.held_at = None
        for output in self.waiting:
            self.output += output
        self.waiting = []

    def fail_append(self) -> None:
        """What is not committed is lost, and so is what waits for it."""
        del self.log[self.held_at :]
        self.fail_over()

    def fail_over(self, **options: str) -> None:
        if "cut" in options:
            del self.log[-int(options["cut"]) :]
        self.held_at, self.waiting, self.base = None, [], len(self.log)
        for known in self.members.values():
            known.seen = 0
        self.shard = self.loaded()

    def records(self) -> None:
        """The last value of every key, as a compacted log has it."""
        last = {record.key: record for record in self.log}
        for record in last.values():
            found = decode(record.key, record.value)
            assert found is not None
            if found[1] is not None:
                self.output.append(type(found[0]).__name__ + " " + "/".join(str(field) for field in found[0]))

    # Members

    def join(self, member: str, *topics: str, **options: str) -> None:
        known = self.members.setdefault(member, Known())
        known.epoch, known.owned, known.instance_id, known.seen = 0, frozenset(), options.get("instance", ""), 0
        self.ask(self.word(member, self.subscription(topics, options)), member)

    def subscribe(self, member: str, *topics: str, **options: str) -> None:
        self.ask(self.word(member, self.subscription(topics, options)), member)

    def say(self, member: str, **options: str) -> None:
        known = self.members[member]
        if "owns" in options:
            known.owned = self.keys(options["owns"])
        word = replace(self.word(member), owned=known.owned)
        if "epoch" in options:
            word = replace(word, member_epoch=int(options["epoch"]))
        if "seen" in options:
            word = replace(word, seen_assignment=known.seen - int(options["seen"].removeprefix("-")))
        self.ask(word, member)

    def beat(self, member: str) -> None:
        self.ask(self.word(member), member)

    def come_back(self, member: str) -> None:
        """On another stream."""
        self.members[member].seen = 0
        self.say(member)

    def leave(self, member: str, epoch: str = "-1") -> None:
        self.ask(replace(self.word(member), member_epoch=int(epoch)), member)

    def word(self, member: str, subscription: Subscription | None = None) -> Heartbeat:
        known = self.members[member]
        return Heartbeat("g", member, known.epoch, known.instance_id, subscription, None, known.seen)

    @staticmethod
    def subscription(topics: Iterable[str], options: dict[str, str]) -> Subscription:
        return Subscription(
            frozenset(topics),
            options.get("pattern", ""),
            options.get("assignor", ""),
            int(options.get("rebalance", "300000")),
            options.get("rack", ""),
        )

    # Offsets and administration

    def commit(self, member: str, *offsets: str, **options: str) -> None:
        known = self.members.get(member, Known())
        epoch = int(options.get("epoch", known.epoch if member != "-" else -1))
        request = CommitOffsets(options.get("group", "g"), member.strip("-"), epoch, self.offsets(offsets, options))
        self.ask(request)

    def alter(self, *offsets: str, **options: str) -> None:
        self.ask(AlterOffsets(options.get("group", "g"), self.offsets(offsets, options)))

    def fetch(self, *partitions: str, **options: str) -> None:
        named = tuple(self.named(each) for each in partitions) or None
        member = options.get("member", "")
        epoch = int(options.get("epoch", self.members[member].epoch if member else -1))
        self.ask(FetchOffsets(options.get("group", "g"), member, epoch, named))

    def delete_offsets(self, *partitions: str) -> None:
        self.ask(DeleteOffsets("g", tuple(self.named(each) for each in partitions)))

    def delete_group(self, group: str = "g") -> None:
        self.ask(DeleteGroup(group))

    def describe(self, group: str = "g") -> None:
        self.ask(DescribeGroup(group))

    def list(self) -> None:
        self.ask(ListGroups())

    @staticmethod
    def named(text: str) -> NamedPartition:
        topic, _, partition = text.rpartition("-")
        return NamedPartition(topic, int(partition))

    def offsets(self, texts: Iterable[str], options: dict[str, str]) -> tuple[OffsetToCommit, ...]:
        split = [(self.named(text.split("@")[0]), int(text.split("@")[1])) for text in texts]
        return tuple(
            OffsetToCommit(place.topic, place.partition, offset, metadata=options.get("metadata", ""))
            for place, offset in split
        )

    # What comes of it

    def ask(self, request: Request, member: str = "") -> None:
        self.take(self.shard.handle(request, self.now_ms), member)

    def take(self, outcome: Outcome, member: str = "") -> None:
        self.log += outcome.records
        output = [] if outcome.answer is None else self.shown(outcome.answer, member)
        for push in outcome.pushes:
            output += self.shown(push.answer, push.member_id)
        if self.held_at is not None and outcome.after and self.base + outcome.after > self.held_at:
            self.waiting.append(output)
            self.output.append("waits")
        else:
            self.output += output

    def all_fetched(self, answer: FetchAnswer) -> list[FetchedOffset]:
        return [fetched_offset(each, value, self.image) for each, value in sorted(answer.kept.items())]

    def shown(self, answer: Answer, member: str) -> list[str]:
        match answer:
            case SessionAnswer():
                return [f"{member}: {self.session(answer, member)}"]
            case CommitAnswer() | DeleteAnswer():
                return (
                    [code(answer.error)] if answer.error else [" ".join(code(each) for each in answer.errors) or "ok"]
                )
            case FetchAnswer():
                if answer.error:
                    return [code(answer.error)]
                return [
                    " ".join(
                        f"{each.partition.topic}-{each.partition.partition}@"
                        + (str(each.committed.offset) if each.committed else "none")
                        for each in answer.offsets or self.all_fetched(answer)
                    )
                    or "nothing"
                ]
            case ListAnswer():
                groups = sorted(answer.groups, key=lambda each: each.group)
                return [f"{each.group} {each.state.value} {each.members}" for each in groups] or ["nothing"]
            case GroupDescription():
                return self.description(answer)
        raise AssertionError(answer)

    def session(self, answer: SessionAnswer, member: str) -> str:
        if answer.error:
            return code(answer.error)
        known = self.members[member]
        known.epoch = answer.member_epoch
        if answer.assignment is None:
            return f"epoch {answer.member_epoch}"
        # What it is to give up it has until it says otherwise.
        known.owned |= answer.assignment
        known.seen = answer.assignment_number
        return f"epoch {answer.member_epoch} has {self.names(answer.assignment)}"

    def description(self, found: GroupDescription) -> list[str]:
        if found.error:
            return [f"{found.state.value} {code(found.error)}"]
        lines = [f"{found.state.value} epoch={found.epoch} target={found.assignment_epoch} {found.assignor}"]
        for member in found.members:
            line = f"{member.member_id} epoch={member.epoch} {member.state.name} has {self.names(member.assigned)}"
            line += f" gives up {self.names(member.revoking)}" if member.revoking else ""
            lines.append(line + (f" target {self.names(member.target)}" if member.target != member.assigned else ""))
        return lines

    def keys(self, text: str) -> Partitions:
        found = []
        for each in text.split(","):
            if each and each != "nothing":
                named = self.named(each)
                topic = self.image.named(named.topic)
                assert topic is not None
                found.append(PartitionKey(topic.topic_id, named.partition))
        return frozenset(found)

    def names(self, keys: Partitions) -> str:
        names = []
        for key in sorted(keys):
            topic = self.image.of_id(key.topic_id)
            names.append(f"{topic.name if topic else 'deleted'}-{key.partition}")
        return ",".join(names) or "nothing"


def code(error: Refusal | None) -> str:
    return error.code.name if error else "ok"
