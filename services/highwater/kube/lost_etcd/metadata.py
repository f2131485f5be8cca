"""Reads a backup from etcd, and writes a plan into one that holds nothing of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import Sequence

from highwater.errors import UserError
from highwater.kube.lost_etcd.backup_file import Backup
from highwater.kube.lost_etcd.plan import Plan
from highwater.metadata.leases.controller_election import ControllerElection
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.reading import CorruptMetadataError, readable
from highwater.metadata.schema.reading import counter as number_of
from highwater.metadata.store.batches import ConditionalWrite, Outcome, write_in_batches
from highwater.metadata.store.etcd_errors import GuardFailed, OutcomeUnknown
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete, DeletePrefix, Entry, Operation, Put, modified_at, value_is

MARKER = "/rebuilding"
NOBODY = -1  # the controller id of who writes here
SESSION_TIMEOUT_MS = 6_000
ELECTED_S = 30.0  # leases of what was stopped have run out by then
ATTEMPTS = 10
PAUSE_S = 0.5


async def take_backup(store: Store, keys: Keys, taken_ms: int) -> Backup:
    """Everything that lasts, as of one revision. Raises `StoreError`, and `UserError` where there is nothing to back
    up, or a rebuilding is under way."""
    listing = await store.get_prefix(keys.everything)
    entries = {each.key.removeprefix(keys.prefix): each.value for each in listing.entries if not each.lease}
    if MARKER in entries:
        raise UserError(
            "a rebuilding of this metadata has begun and not ended: there is no backup of what is half there"
        )
    cluster_id = entries.get("/cluster_id")
    if cluster_id is None:
        raise UserError(f"etcd holds no cluster under {keys.prefix}: check --cluster and --etcd")
    return Backup(keys.cluster, cluster_id.decode(), listing.revision, taken_ms, entries)


async def write_plan(store: Store, keys: Keys, plan: Plan, *, replace: bool = False) -> bool:
    """Puts the plan into etcd; False where it stands there already. `replace`: what the cluster has there goes first.

    The controller's own key is held meanwhile, so no controller acts on a part of it; the cluster's id, which brokers
    compare with their logs' before they touch any, comes in the last transaction. Whoever is killed on the way has left
    a marker: run it again with the same input. Raises `UserError`, `StoreError`.
    """
    digest = _digest(plan, keys)
    present = await _when_stopped(store, keys)
    if _is_there(present, plan, keys):
        return False
    marker = present.get(keys.prefix + MARKER)
    if marker is None or marker.value != digest:
        if not replace:
            _check_empty(present, keys, begun=marker is not None)
        await _begin(store, keys, plan, present, digest)
    election = ControllerElection(
        store,
        keys,
        controller_id=NOBODY,
        address="",
        incarnation=uuid.uuid4().hex,
        session_timeout_ms=SESSION_TIMEOUT_MS,
    )
    try:
        async with asyncio.timeout(ELECTED_S):
            term = await election.campaign()
    except TimeoutError:
        raise UserError("another controller acts: stop all controllers and brokers first") from None
    try:
        await _put_all(store, keys, term, plan.values(keys))
        await _put_all(store, keys, term, plan.topic_values(keys))
        await _finish(store, keys, term, plan, digest)
    except GuardFailed as error:
        raise UserError(f"etcd gave the controller's key to another one ({error}): run this again") from error
    finally:
        await election.resign()
    return True


def _digest(plan: Plan, keys: Keys) -> bytes:
    found = hashlib.sha256()
    for key, value in (*plan.values(keys), *plan.topic_values(keys)):
        found.update(b"%d %s %d " % (len(key), key.encode(), len(value)) + value)
    found.update(f"{plan.cluster_id} {plan.controller_epoch} {plan.next_producer_id}".encode())
    return found.hexdigest().encode()


def _is_there(present: dict[str, Entry], plan: Plan, keys: Keys) -> bool:
    """Tells whether a run before has come to its end, and nothing was done since."""
    wanted = (*plan.values(keys), *plan.topic_values(keys), (keys.cluster_id, plan.cluster_id.encode()))
    return keys.prefix + MARKER not in present and all(
        key in present and present[key].value == value for key, value in wanted
    )


async def _when_stopped(store: Store, keys: Keys) -> dict[str, Entry]:
    """All keys, once the leases of brokers that were killed have run out. Raises `UserError`, `StoreError`."""
    deadline = time.monotonic() + ELECTED_S
    while True:
        listing = await store.get_prefix(keys.everything)
        present = {entry.key: entry for entry in listing.entries}
        registered = sorted(key.removeprefix(keys.broker_ids) for key in present if key.startswith(keys.broker_ids))
        if not registered:
            return present
        if time.monotonic() > deadline:
            raise UserError(
                f"brokers {', '.join(registered)} are registered in this etcd: stop all brokers and controllers first"
            )
        await asyncio.sleep(PAUSE_S)


def _check_empty(present: dict[str, Entry], keys: Keys, *, begun: bool) -> None:
    """A controller that was started with an empty etcd has put an id and a counter there: those do no harm."""
    if begun:
        raise UserError(
            "another rebuilding of this metadata was begun and not ended: run it again with the same inventories and "
            "backup, or give --replace to begin anew with these"
        )
    harmless = {keys.cluster_id, keys.controller_epoch, keys.controller, keys.producer_ids}
    found = sorted(key for key in present if key not in harmless)
    if found:
        topics = sum(1 for key in found if key.startswith(keys.topic_configs))
        raise UserError(
            f"etcd holds a cluster under {keys.prefix} already ({len(found)} keys, {topics} topics, for example "
            f"{found[0]}): nothing is written over it. Give --replace if it is to go"
        )


async def _begin(store: Store, keys: Keys, plan: Plan, present: dict[str, Entry], digest: bytes) -> None:
    counter = present.get(keys.controller_epoch)
    epoch = plan.controller_epoch
    if counter is not None:
        with contextlib.suppress(CorruptMetadataError):  # of what stood there the plan knows as much
            epoch = max(epoch, readable(counter, number_of))
    gone: list[Operation] = [
        DeletePrefix(prefix)
        for prefix in (f"{keys.prefix}/brokers/", f"{keys.prefix}/config/", keys.delete_topics, keys.isr_changes)
    ]
    puts = (Put(keys.prefix + MARKER, digest), Put(keys.controller_epoch, str(epoch).encode()))
    result = await store.txn(
        (modified_at(keys.controller_epoch, 0 if counter is None else counter.mod_revision),), (*gone, *puts)
    )
    if not result.succeeded:
        raise UserError("a controller was elected meanwhile: stop all controllers and brokers first")


async def _put_all(store: Store, keys: Keys, term: ControllerTerm, values: Sequence[tuple[str, bytes]]) -> None:
    """Raises `GuardFailed`, and `UserError` where etcd goes on not taking it."""
    due = [ConditionalWrite((), (Put(key, value),)) for key, value in values]
    for _ in range(ATTEMPTS):
        results = await write_in_batches(store, due, guards=(term.guard(keys),))
        # The same value again does no harm.
        due = [write for write, done in zip(due, results, strict=True) if done.outcome is not Outcome.WRITTEN]
        if not due:
            return
        await asyncio.sleep(PAUSE_S)
    raise UserError(f"etcd does not take {len(due)} of the keys: see that it is healthy, and run this again")


async def _finish(store: Store, keys: Keys, term: ControllerTerm, plan: Plan, digest: bytes) -> None:
    """Raises `GuardFailed`, `StoreError`."""
    marker = keys.prefix + MARKER
    present = await store.get(keys.producer_ids)
    next_id = max(plan.next_producer_id, 0 if present is None else int(json.loads(present.value)["next"]))
    try:
        result = await store.txn(
            (term.guard(keys), value_is(marker, digest)),
            (
                Put(keys.producer_ids, json.dumps({"next": next_id}).encode()),
                Put(keys.cluster_id, plan.cluster_id.encode()),
                Delete(marker),
            ),
        )
    except OutcomeUnknown:
        raise UserError("whether the last step was done is not known: run this again with the same input") from None
    if not result.succeeded:
        raise GuardFailed("the term has ended, or the marker was written over")
