"""`highwater topics apply`: topics as a file declares them. What is missing is made, nothing is ever taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from highwater.client.admin.descriptions import NewTopic, TopicDescription
from highwater.client.blocking import Admin
from highwater.client.exceptions import HighwaterError, UnknownTopicError
from highwater.console.counted import counted
from highwater.errors import UserError
from highwater.validation import problem


def _text(value: Any) -> Any:
    """JSON's numbers and truth values, as a topic's configuration has them."""
    return json.dumps(value) if isinstance(value, (bool, int)) else value


class DeclaredTopic(BaseModel):
    """One topic of the file. What it does not say is left to the cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)

    name: str = Field(min_length=1)
    partitions: int | None = Field(None, ge=1)
    replication_factor: int | None = Field(None, ge=1)
    config: Mapping[str, Annotated[str, BeforeValidator(_text)]] = Field(default_factory=dict)


_TOPICS = TypeAdapter(list[DeclaredTopic])


def read_declared(path: Path) -> list[DeclaredTopic]:
    """The file's topics: a JSON list of objects with `name` and, each optional, `partitions`, `replicationFactor` and
    `config`. Raises `UserError`."""
    try:
        declared = _TOPICS.validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        problems = "; ".join(f"{_place(one['loc'])}: {problem(one)}" for one in error.errors())
        raise UserError(f"{path} is no list of topics: {problems}") from None
    names = [one.name for one in declared]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path} declares twice: {', '.join(twice)}")
    return declared


def _place(location: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in location) or "it"


def apply(admin: Admin, declared: Sequence[DeclaredTopic]) -> Iterator[tuple[str, HighwaterError | UserError | None]]:
    """Tells what was done to each topic, in words, or why it was not; the others are gone on with."""
    for topic in declared:
        try:
            for done in _applied(admin, topic):
                yield done, None
        except (HighwaterError, UserError) as error:
            yield f"{topic.name}: {error}", error


def _applied(admin: Admin, declared: DeclaredTopic) -> Iterator[str]:
    name = declared.name
    try:
        (found,) = admin.describe_topics([name])
    except UnknownTopicError:
        new = NewTopic(name, declared.partitions, declared.replication_factor, dict(declared.config))
        (made,) = admin.create_topics([new])
        if made.error is not None:
            raise made.error from None
        yield f"{name}: created, {counted(made.partitions, 'partition')}, replication factor {made.replication_factor}"
        return
    _check(found, declared)
    changed = {key: value for key, value in declared.config.items() if found.config.get(key) != value}
    if changed:
        admin.alter_topic_config(name, changed)
        yield f"{name}: set {' '.join(f'{key}={value}' for key, value in sorted(changed.items()))}"
    if declared.partitions is not None and declared.partitions > len(found.partitions):
        admin.create_partitions(name, declared.partitions)
        yield f"{name}: {counted(declared.partitions, 'partition')} instead of {len(found.partitions)}"
    elif not changed:
        yield f"{name}: as declared"


def _check(found: TopicDescription, declared: DeclaredTopic) -> None:
    there = len(found.partitions)
    if declared.partitions is not None and declared.partitions < there:
        raise UserError(
            f"it has {counted(there, 'partition')}, and {declared.partitions} are declared: partitions are "
            f"never taken away; declare {there}, or make another topic"
        )
    replicas = {len(one.replicas) for one in found.partitions}
    if declared.replication_factor is not None and replicas != {declared.replication_factor}:
        raise UserError(
            f"its partitions have {', '.join(map(str, sorted(replicas)))} replicas, and {declared.replication_factor} "
            "are declared: a topic's replication factor stays as it was made; declare that, or make another topic"
        )
