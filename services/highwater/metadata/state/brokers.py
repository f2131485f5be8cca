"""Registered brokers, as others see them."""

from __future__ import annotations

import contextlib

from highwater.metadata.schema.cluster_view import live_broker
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import LiveBroker
from highwater.metadata.schema.reading import CorruptMetadataError, readable
from highwater.metadata.store.etcd_errors import ControllerDeposed
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete, Get, Put, created_at


async def read_brokers(store: Store, keys: Keys) -> dict[int, LiveBroker]:
    """Linearizable."""
    listing = await store.get_prefix(keys.broker_ids)
    return {broker.registration.broker_id: broker for broker in map(live_broker, listing.entries)}


async def read_addresses(store: Store, keys: Keys) -> dict[int, tuple[int, frozenset[str]]]:
    """The broker epoch and all addresses of each registered broker. A registration that cannot be read is passed over:
    it is no reason for another broker not to register."""
    found = {}
    for entry in (await store.get_prefix(keys.broker_ids)).entries:
        with contextlib.suppress(CorruptMetadataError):
            broker = readable(entry, live_broker)
            addresses = frozenset({broker.registration.address, *broker.registration.listeners.values()})
            found[broker.registration.broker_id] = (broker.broker_epoch, addresses)
    return found


async def expel_broker(store: Store, keys: Keys, term: ControllerTerm, broker_id: int, broker_epoch: int) -> bool:
    """Ends the registration of exactly this broker epoch (RULES 8.3); False where it has ended already.

    The key is deleted in a guarded transaction, which a deposed controller cannot do; revoking the lease, it could.
    The broker sees its key gone and registers anew under a fresh lease. Raises `ControllerDeposed`, `OutcomeUnknown`
    (calling again is harmless) and `Unavailable`.
    """
    key = keys.broker(broker_id)
    guard = term.guard(keys)
    result = await store.txn((guard, created_at(key, broker_epoch)), (Delete(key),), (Get(guard.key),))
    if not result.succeeded and not guard.holds(result.entries[0]):
        raise ControllerDeposed(f"controller epoch {term.controller_epoch} has ended")
    return result.succeeded


async def record_tail(store: Store, keys: Keys, term: ControllerTerm, broker_id: int, broker_epoch: int) -> bool:
    """Puts the broker epoch into `/brokers/tail/<id>`, so that this registration is ordinary (RULES 7.2); False where
    it has ended. Raises as `expel_broker`; repeating it is harmless."""
    guard = term.guard(keys)
    result = await store.txn(
        (guard, created_at(keys.broker(broker_id), broker_epoch)),
        (Put(keys.broker_tail(broker_id), str(broker_epoch).encode()),),
        (Get(guard.key),),
    )
    if not result.succeeded and not guard.holds(result.entries[0]):
        raise ControllerDeposed(f"controller epoch {term.controller_epoch} has ended")
    return result.succeeded
