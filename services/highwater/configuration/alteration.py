"""Changes of dynamic configurations: which are refused, and how. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from highwater.configuration.dynamic_keys import BROKER_KEYS, CLUSTER_KEYS, KEYS
from highwater.configuration.entities import ConfigEntity, EntityKind
from highwater.configuration.kafka_keys import MEANINGLESS_KEYS
from highwater.configuration.static_keys import INSTEAD, READ_ONLY_KEYS
from highwater.configuration.topic_keys import KEYS_BEHIND
from highwater.configuration.value_checks import MAX_SHOWN, shown

MAX_VALUE = 4 << 10  # characters


def problem_with(
    entity: ConfigEntity, changed: Mapping[str, str], unset: Collection[str], present: Collection[str] = ()
) -> str | None:
    """One sentence about the first key that cannot be changed so; None where all can. `present` are keys that are set,
    known or not: they may be unset."""
    known = KEYS[entity.kind]
    for key, value in sorted(changed.items()):
        check = known.get(key)
        if check is None:
            return _unknown(entity.kind, key)
        if len(value) > MAX_VALUE:
            return f"{key} has {len(value)} characters: {MAX_VALUE} are the most"
        if (problem := check(value)) is not None:
            return f"{key}={shown(value)} {problem}"
    for key in sorted(unset):
        if key not in known and key not in present:
            return _unknown(entity.kind, key)
    return None


def nearest(key: str, known: Iterable[str]) -> str:
    """`, did you mean …`, where a known key is near."""
    found = get_close_matches(key[:MAX_SHOWN], known, n=1)
    return f", did you mean {found[0]}?" if found else ""


def _unknown(kind: EntityKind, key: str) -> str:
    if kind is EntityKind.BROKERS and key in CLUSTER_KEYS:
        return f"{key} is of the cluster, as all its services must agree on it: set it there, and not for a broker"
    if kind is EntityKind.CLUSTER and key in BROKER_KEYS:
        return f"{key} is of brokers: set it for one of them, or as the default of all"
    if kind in (EntityKind.BROKERS, EntityKind.CLUSTER) and key in {*READ_ONLY_KEYS, "log.dir"}:
        instead = f", or set {INSTEAD[key]} in its place" if key in INSTEAD else ""
        return f"{key} is READ_ONLY: a service reads it at its start. Change its settings, and start it again{instead}"
    if kind in (EntityKind.BROKERS, EntityKind.CLUSTER) and key in MEANINGLESS_KEYS:
        return f"{key} means nothing here: {MEANINGLESS_KEYS[key]}"
    known = KEYS[kind]
    spelling = KEYS_BEHIND.get(key)
    hint = f", did you mean {spelling}?" if spelling in known else nearest(key, known)
    return f"unknown configuration {shown(key)} of {kind.value}{hint or ': the known keys are ' + ', '.join(known)}"
