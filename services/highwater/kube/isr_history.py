"""`python -m highwater.kube.isr_history --minimum N [--since REVISION]`: whether partitions had fewer in sync than N.

Without `--since` it prints etcd's current revision. With it, every state that any partition has had from that revision
on is looked at, none is sampled: etcd hands out all that it has not compacted. The last line is a JSON object; the exit
status is 0 where no ISR was smaller than N. It runs where etcd can be reached and read, as in a broker's pod, with the
settings of services: `--config /etc/highwater/replica-manager.properties`, or `--set etcd=HOST:PORT`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from highwater.errors import UserError
from highwater.metadata.schema.cluster_view import StateChange, decode_event
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.etcd_errors import Compacted, StoreError
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Put, WatchBatch
from highwater.rpc.settings import EtcdSettings, load, read_properties

SILENT_S = 30.0
"""For etcd to go on with what it has."""
SHOWN = 50  # of those below; the others are counted
_END = "isr_history_end"
_END_S = 60  # the lease of the key that says where the history ends


async def current_revision(store: Store, keys: Keys) -> int:
    """Raises `StoreError`."""
    _, revision = await store.get_many([keys.cluster_id])
    return revision


async def history(store: Store, keys: Keys, minimum: int, since: int) -> dict[str, Any]:
    """The changes that there were after revision `since` up to now. Raises `StoreError`: `Compacted` where etcd
    keeps no longer what came after it, `ValueError` for a state that is none, and `UserError` where etcd says
    nothing more."""
    found: dict[str, Any] = {"since": since, "changes": 0, "smallest": None, "below": 0, "below_minimum": []}
    # A watch does not say when it has caught up, so it is given a last event.
    lease, _ = await store.lease_grant(_END_S)
    try:
        written = await store.txn((), (Put(f"{keys.everything}{_END}", b"", lease),))
        found["until"] = written.revision
        async with contextlib.aclosing(store.watch_prefix(keys.everything, since + 1)) as batches:
            while True:
                batch = await _next(batches)
                for event in batch.events:
                    change = decode_event(keys, event)
                    if isinstance(change, StateChange) and change.value is not None:
                        _note(found, change, minimum, event.revision)
                if batch.revision >= written.revision:
                    return found
    finally:
        with contextlib.suppress(StoreError):
            await store.lease_revoke(lease)


async def _next(batches: AsyncGenerator[WatchBatch]) -> WatchBatch:
    """Raises `UserError`: a watch itself waits for etcd as long as it takes."""
    try:
        async with asyncio.timeout(SILENT_S):
            return await anext(batches)
    except TimeoutError:
        raise UserError(
            f"etcd has sent nothing for {SILENT_S:g} s, and there is more to come: see that it has a quorum, and run "
            "this again"
        ) from None


def _note(found: dict[str, Any], change: StateChange, minimum: int, revision: int) -> None:
    assert change.value is not None
    state = change.value.state
    found["changes"] += 1
    found["smallest"] = min(found["smallest"] or len(state.isr), len(state.isr))
    if len(state.isr) < minimum:
        found["below"] += 1
        if len(found["below_minimum"]) < SHOWN:
            partition = f"{change.topic}-{change.partition}"
            found["below_minimum"].append({"revision": revision, "partition": partition, "isr": list(state.isr)})


async def answered(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, action="append", default=[], help="properties file of a service")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting")
    parser.add_argument("--since", type=int, help="a revision of etcd; what came after it is looked at")
    parser.add_argument("--minimum", type=int, default=2)
    given = parser.parse_args(arguments)
    try:
        return await _said(_settings(given), given.minimum, given.since)
    except Compacted as error:
        print(
            f"etcd has compacted what came after revision {given.since} (up to {error.revision}): ask sooner, or let "
            "it keep more (the chart's etcd.autoCompactionRetention)",
            file=sys.stderr,
        )
    except (StoreError, UserError, ValueError) as error:
        print(error, file=sys.stderr)
    return 2


def _settings(given: argparse.Namespace) -> EtcdSettings:
    """Of all that a service's file has, what leads to etcd. Raises `UserError`."""
    merged: dict[str, str] = {}
    for config in given.config:
        merged |= read_properties(config)
    merged |= dict(item.split("=", 1) for item in given.set if "=" in item)
    wanted = {name.replace("_", ".") for name in EtcdSettings.model_fields}
    return load(EtcdSettings, {key: value for key, value in merged.items() if key in wanted})


async def _said(settings: EtcdSettings, minimum: int, since: int | None) -> int:
    keys = Keys(settings.cluster)
    async with Store.of(settings) as store:
        if since is None:
            print(json.dumps({"revision": await current_revision(store, keys)}))
            return 0
        found = await history(store, keys, minimum, since)
    print(json.dumps(found))
    return 1 if found["below"] else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(answered(sys.argv[1:])))
