"""The store against a real etcd: deadlines, unknown outcomes, several endpoints, leases, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import time
from pathlib import Path

import grpc.aio
import pytest
import trustme
from aetcd import rpc
from etcd_proxy import EtcdProxy, until

from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store import store as store_module
from highwater.metadata.store.etcd_errors import (
    Compacted,
    LeaseNotFound,
    OutcomeUnknown,
    Refused,
    StoreClosed,
    Unavailable,
)
from highwater.metadata.store.store import Store, TlsSettings
from highwater.metadata.store.transactions import (
    Delete,
    DeletePrefix,
    Get,
    Operation,
    Put,
    absent,
    created_at,
    modified_at,
    value_is,
)

DEAD = "127.0.0.1:1"


async def test_a_transaction_is_done_whole_or_not_at_all(store: Store, keys: Keys) -> None:
    key, other = keys.broker(1), keys.broker(2)
    made = await store.txn((absent(key),), (Put(key, b"a"), Put(other, b"b")))
    assert made.succeeded
    again = await store.txn((absent(key), value_is(other, b"b")), (Delete(other),), (Get(key), Get(keys.broker(3))))
    assert not again.succeeded
    found, missing = again.entries
    assert found is not None
    assert (found.key, found.value, found.create_revision, found.mod_revision) == (
        key,
        b"a",
        made.revision,
        made.revision,
    )
    assert missing is None
    assert await store.get(other) is not None


async def test_of_two_writes_that_compare_the_same_revision_one_wins(store: Store, keys: Keys) -> None:
    key = keys.broker(1)
    revision = await store.put(key, b"0")
    results = await asyncio.gather(
        *(store.txn((modified_at(key, revision),), (Put(key, b"%d" % n),)) for n in range(8))
    )
    assert [result.succeeded for result in results].count(True) == 1


async def test_a_put_over_a_key_keeps_its_create_revision_and_a_delete_does_not(store: Store, keys: Keys) -> None:
    key = keys.broker(1)
    created = await store.put(key, b"a")
    await store.put(key, b"b")
    assert (await store.txn((created_at(key, created),), (Delete(key),))).succeeded
    assert await store.put(key, b"c") > created
    assert not (await store.txn((created_at(key, created),), (Delete(key),))).succeeded


async def test_a_listing_is_of_one_revision_and_any_length(
    store: Store, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PAGE_ENTRIES", 7)
    names = [keys.state("t", partition) for partition in range(100)]
    puts: list[Operation] = [Put(name, name.encode()) for name in names]
    written = (await store.txn((), puts)).revision
    await store.put(keys.topic("t"), b"outside")
    listing = await store.get_prefix(keys.partitions("t"))
    assert [entry.key for entry in listing.entries] == sorted(names)
    assert listing.revision > written
    await store.txn((), (DeletePrefix(keys.partitions("t")),))
    assert (await store.get_prefix(keys.partitions("t"))).entries == ()
    assert len((await store.get_prefix(keys.partitions("t"), revision=written)).entries) == 100


async def test_a_listing_is_read_whatever_its_entries_weigh(store: Store, keys: Keys) -> None:
    """80 MB in 64 entries, between some that are small: more than one answer may have."""
    small = [keys.state("t", partition) for partition in range(300)]
    for start in range(0, 300, 100):
        await store.txn((), [Put(name, b"x") for name in small[start : start + 100]])
    large = [keys.topic_config(f"t-{number:02d}") for number in range(64)]
    for name in large:
        await store.put(name, b"y" * 1_250_000, timeout_s=30)
    listing = await store.get_prefix(keys.everything, timeout_s=30)
    assert [entry.key for entry in listing.entries] == sorted([*small, *large])
    assert all(len(entry.value) == (1_250_000 if entry.key in large else 1) for entry in listing.entries)
    found, _ = await store.get_many([*small, *large], timeout_s=30)
    assert set(found) == {*small, *large}


async def test_a_key_that_is_no_text_keeps_nobody_from_the_others(etcd: LocalEtcd, store: Store, keys: Keys) -> None:
    key = keys.topic("t")
    await store.put(key, b"x")
    raw = key.encode() + b"\xff\xfe"
    async with grpc.aio.insecure_channel(etcd.address) as channel:
        await rpc.KVStub(channel).Put(rpc.PutRequest(key=raw, value=b"y"))
    listing = await store.get_prefix(keys.topics)
    assert [entry.key for entry in listing.entries] == [key, key + r"\xff\xfe"]


async def test_many_keys_are_read_as_of_one_revision(store: Store, keys: Keys) -> None:
    names = [keys.broker(number) for number in range(300)]
    for start in range(0, 300, 100):
        await store.txn((), [Put(name, b"x") for name in names[start : start + 100]])
    found, revision = await store.get_many([*names, keys.broker(999)])
    assert set(found) == set(names)
    assert revision >= max(entry.mod_revision for entry in found.values())
    assert await store.get_many([]) == ({}, pytest.approx(revision, abs=1_000))


async def test_a_malformed_transaction_is_refused(store: Store, keys: Keys) -> None:
    with pytest.raises(Refused, match="duplicate key"):
        await store.txn((), (Put(keys.broker(1), b""), Put(keys.broker(1), b"")))


async def test_without_an_etcd_nothing_is_done_and_the_error_names_the_endpoints() -> None:
    async with Store([DEAD, "127.0.0.1:2"], timeout_s=0.3) as store:
        started = time.monotonic()
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2"):
            await store.put("/x", b"")
        with pytest.raises(Unavailable):
            await store.get("/x")
        assert time.monotonic() - started < 1.5


async def test_a_dead_endpoint_is_passed_over(etcd: LocalEtcd, keys: Keys) -> None:
    async with Store([DEAD, etcd.address]) as store:
        await store.put(keys.broker(1), b"a")
        assert await store.get(keys.broker(1)) is not None


async def test_an_etcd_that_hangs_meets_the_deadline(own_etcd: LocalEtcd) -> None:
    async with Store([own_etcd.address]) as store:
        await store.put("/a", b"")
        own_etcd.signal(signal.SIGSTOP)
        # On a busy machine its other threads run on for a while, and answer.
        await asyncio.to_thread(os.waitid, os.P_PID, own_etcd.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            with pytest.raises(OutcomeUnknown):
                await store.put("/a", b"1", timeout_s=0.3)
            with pytest.raises(Unavailable):
                await store.get("/a", timeout_s=0.3)
        finally:
            own_etcd.signal(signal.SIGCONT)
        assert await store.get("/a") is not None


async def test_a_write_whose_answer_is_lost_is_of_unknown_outcome_and_not_sent_again(
    etcd: LocalEtcd, store: Store, keys: Keys
) -> None:
    key = keys.broker(1)
    async with EtcdProxy(etcd.address) as proxy, Store([proxy.address]) as proxied:
        before = await proxied.put(key, b"before")
        async with proxy.swallowing_answers():
            with pytest.raises(OutcomeUnknown):
                await proxied.put(key, b"after", timeout_s=0.5)
            assert proxy.swallowed_bytes
        entry = await proxied.get(key)
        assert entry is not None
        assert entry.value == b"after"
        assert entry.mod_revision > before
        history = await store.get_prefix(keys.everything)
        assert [each.mod_revision for each in history.entries] == [entry.mod_revision]


async def test_reads_and_read_only_transactions_are_repeated_over_a_broken_connection(
    etcd: LocalEtcd, keys: Keys
) -> None:
    async with EtcdProxy(etcd.address) as proxy, Store([proxy.address]) as proxied:
        await proxied.put(keys.broker(1), b"a")
        proxy.swallowing = True
        reading = asyncio.gather(
            proxied.get(keys.broker(1)), proxied.txn((), (Get(keys.broker(1)),)), proxied.get_many([keys.broker(1)])
        )
        await until(lambda: proxy.swallowed_bytes)
        await proxy.cut()
        proxy.restore()
        one, two, (three, _) = await reading
        assert one == two.entries[0] == three[keys.broker(1)]


async def test_a_lease_expires_with_its_keys_unless_it_is_renewed(store: Store, keys: Keys) -> None:
    kept, granted_s = await store.lease_grant(1)
    left, _ = await store.lease_grant(1)
    assert granted_s == 1
    await store.put(keys.broker(1), b"", lease=kept)
    revision = await store.put(keys.broker(2), b"", lease=left)

    leases = store.blocking_leases()

    async def renew() -> None:
        while True:
            assert await asyncio.to_thread(leases.renew, kept, 5.0) == 1
            await asyncio.sleep(0.2)

    renewing = asyncio.create_task(renew())
    async with asyncio.timeout(8), contextlib.aclosing(store.watch(keys.broker(2), revision + 1)) as batches:
        async for batch in batches:
            assert batch.events[0].entry is None
            break
    renewing.cancel()
    assert await store.get(keys.broker(1)) is not None
    with pytest.raises(LeaseNotFound):
        leases.renew(left, 5.0)
    with pytest.raises(LeaseNotFound):
        await store.put(keys.broker(3), b"", lease=left)
    assert await store.get(keys.broker(3)) is None
    await store.lease_revoke(kept)
    assert await store.get(keys.broker(1)) is None
    await store.lease_revoke(kept)
    leases.close()


async def test_a_renewal_that_comes_to_its_deadline_fails_as_any_other_call(etcd: LocalEtcd) -> None:
    """Whenever that is: something that nobody expects would end the controller's term, or the broker's session."""
    async with EtcdProxy(etcd.address) as proxy, Store([etcd.address]) as store, Store([proxy.address]) as proxied:
        lease, _ = await store.lease_grant(60)
        leases, through_proxy = store.blocking_leases(), proxied.blocking_leases()
        for number in range(1500):
            # From what is too short for most machines to what is enough for most calls. A quick one has none late.
            with contextlib.suppress(Unavailable):
                await asyncio.to_thread(leases.renew, lease, 0.001 + number % 40 / 10_000)
        assert await asyncio.to_thread(through_proxy.renew, lease, 5.0) == 60
        proxy.answers_after_s = 0.05
        for number in range(40):
            with pytest.raises(Unavailable):
                await asyncio.to_thread(through_proxy.renew, lease, 0.001 + number / 1000)
        proxy.answers_after_s = 0.0
        await store.lease_revoke(lease)
        leases.close()
        through_proxy.close()


async def test_a_renewal_that_is_closed_ends_at_once(etcd: LocalEtcd) -> None:
    """Also one that waits for an answer, or for a connection; and none is begun afterwards."""
    async with EtcdProxy(etcd.address) as proxy, Store([proxy.address]) as store:
        lease, _ = await store.lease_grant(60)
        leases = store.blocking_leases()
        assert await asyncio.to_thread(leases.renew, lease, 5.0) == 60
        async with proxy.swallowing_answers():
            renewing = asyncio.create_task(asyncio.to_thread(leases.renew, lease, 30.0))
            await asyncio.sleep(0.1)
            leases.close()
            with pytest.raises(StoreClosed):
                await asyncio.wait_for(renewing, 5.0)
        with pytest.raises(StoreClosed):
            leases.renew(lease, 30.0)
        assert await store.get("/x") is None
        closed = Store([DEAD]).blocking_leases()
        renewing = asyncio.create_task(asyncio.to_thread(closed.renew, lease, 30.0))
        await asyncio.sleep(0.1)
        closed.close()
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(renewing, 5.0)


async def test_a_compacted_revision_is_told(own_etcd: LocalEtcd) -> None:
    async with Store([own_etcd.address]) as store:
        first = await store.put("/a/1", b"")
        last = await store.put("/a/1", b"")
        await store.compact(last)
        with pytest.raises(Compacted):
            await store.get_prefix("/a/", revision=first)
        with pytest.raises(Compacted) as told:
            await anext(store.watch_prefix("/a/", first))
        assert told.value.revision == last


async def test_a_client_with_a_certificate_gets_through_tls_and_one_without_gets_nothing(
    etcd: LocalEtcd, keys: Keys, tmp_path: Path
) -> None:
    authority, certificate, key = (tmp_path / name for name in ("authority.pem", "member.pem", "member-key.pem"))
    issuing = trustme.CA()
    issuing.cert_pem.write_to_path(authority)
    issued = issuing.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    async with EtcdProxy(etcd.address, context) as proxy:
        async with Store([proxy.address], tls=TlsSettings(authority, certificate, key)) as store:
            await store.put(keys.broker(1), b"1")
            assert await store.get(keys.broker(1)) is not None
        for refused in (TlsSettings(authority), TlsSettings(None, certificate, key), None):
            async with Store([proxy.address], tls=refused, timeout_s=0.3) as store:
                with pytest.raises(Unavailable):
                    await store.get(keys.broker(1))
