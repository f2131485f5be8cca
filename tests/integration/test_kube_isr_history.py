"""Every ISR that a partition ever had is looked at, not the last one of several."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from highwater.kube import isr_history
from highwater.kube.isr_history import current_revision, history
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import PartitionState
from highwater.metadata.store.etcd_errors import Compacted
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete

STATE = PartitionState(leader=1, leader_epoch=3, leader_broker_epoch=9, isr=(1, 2, 3))


async def become(store: Store, keys: Keys, topic: str, *isr: int) -> int:
    return await store.put(keys.state(topic, 0), replace(STATE, isr=isr).to_json())


async def test_what_was_below_for_a_moment_is_told(store: Store, keys: Keys) -> None:
    await become(store, keys, "before", 1)
    since = await current_revision(store, keys)
    for number in range(3000):
        await become(store, keys, "busy", 1, 2, 3 + number % 2)
    fell = await become(store, keys, "gone", 3)
    await become(store, keys, "gone", 1, 2, 3)
    await store.txn((), (Delete(keys.state("gone", 0)),))
    found = await history(store, keys, 2, since)
    assert found["below_minimum"] == [{"revision": fell, "partition": "gone-0", "isr": [3]}]
    assert (found["changes"], found["smallest"], found["below"], found["since"]) == (3002, 1, 1, since)
    assert (await history(store, keys, 2, fell))["below"] == 0
    assert (await history(store, keys, 2, await current_revision(store, keys)))["changes"] == 0
    listing = await store.get_prefix(keys.everything)
    assert [entry.key for entry in listing.entries if "isr_history" in entry.key] == []


async def test_what_was_compacted_is_not_taken_for_good(store: Store, keys: Keys) -> None:
    since = await current_revision(store, keys)
    await become(store, keys, "t", 1)
    await store.compact(await become(store, keys, "t", 1, 2, 3))
    with pytest.raises(Compacted):
        await history(store, keys, 2, since)


async def test_the_command_tells_by_its_status(
    etcd: LocalEtcd, store: Store, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--set=etcd={etcd.address}", f"--set=cluster={keys.cluster}"]

    async def run(*arguments: str) -> tuple[int, str, str]:
        status = await isr_history.answered([*given, *arguments])
        out, error = capsys.readouterr()
        return status, out, error

    status, out, _ = await run()
    assert status == 0
    since = json.loads(out)["revision"]
    await become(store, keys, "t", 1, 2)
    assert (await run(f"--since={since}"))[0] == 0
    status, out, _ = await run(f"--since={since}", "--minimum=3")
    assert (status, json.loads(out)["below"]) == (1, 1)
    await store.compact(await become(store, keys, "t", 1))
    status, out, error = await run(f"--since={since}")
    assert (status, out) == (2, "")
    assert "etcd.autoCompactionRetention" in error
