"""A watch that outlives its connections."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from typing import Any

from aetcd import rpc
from grpc.aio import AioRpcError

from highwater.metadata.store.connections import Connections, Retired
from highwater.metadata.store.etcd_errors import Compacted, Refused, Unavailable, classify
from highwater.metadata.store.refusals import Refusals
from highwater.metadata.store.transactions import Entry, Event, WatchBatch

HAS_LEADER = (("hasleader", "true"),)
"""Makes a member that lost the cluster's leader say so at once, instead of letting calls and watches hang."""

RECONNECT_PAUSE_S = 0.1

_PASSING = ("no leader", "server stopped", "not capable", "too many requests", "connection", "Unavailable")
"""Reasons for which a member ends watches that another one, or the same one later, serves."""


def prefix_end(prefix: str) -> bytes:
    """The first key after all keys with the prefix."""
    key = bytearray(prefix.encode())
    key[-1] += 1  # UTF-8 never holds 0xff, so there is no carry
    return bytes(key)


def _key(pair: Any) -> str:
    """As text: what is not UTF-8 is none of ours, and no reason to read nothing."""
    key: bytes = pair.key
    return key.decode(errors="backslashreplace")


def entry_of(pair: Any) -> Entry:
    return Entry(_key(pair), pair.value, pair.create_revision, pair.mod_revision, pair.lease)


async def watch_range(
    connections: Connections, refusals: Refusals, key: bytes, range_end: bytes, start_revision: int
) -> AsyncGenerator[WatchBatch]:
    """The events of [key, range_end) (of the key alone where it is empty) from `start_revision` on, see
    `Store.watch_prefix`. Raises `Compacted`, and `Refused` where etcd may not be watched (any more); a store that is
    closed ends it with `StoreClosed`."""
    if start_revision < 1:
        raise ValueError("a watch starts at the revision after a listing's, at least 1")
    next_revision = start_revision
    while True:
        member = await connections.member(math.inf)
        stream = member.watch.Watch(metadata=HAS_LEADER)
        try:
            with connections.using(member, stream):
                create = rpc.WatchCreateRequest(
                    key=key, range_end=range_end, start_revision=next_revision, progress_notify=True, fragment=True
                )
                await stream.write(rpc.WatchRequest(create_request=create))
                events: list[Event] = []
                async for response in stream:
                    if response.canceled:
                        if response.compact_revision:
                            raise Compacted(response.compact_revision)
                        reason = response.cancel_reason
                        if reason and not any(passing in reason for passing in _PASSING):
                            raise Refused(f"etcd ended the watch of {key.decode()}: {reason}")
                        break  # this member lost its leader, or is stopping
                    events += map(_event, response.events)
                    if response.fragment:
                        continue  # the rest of the answer, perhaps of the same revision, is still to come
                    if events:
                        next_revision = events[-1].revision + 1
                        yield WatchBatch(tuple(events), events[-1].revision)
                        events = []
                    elif not response.created:
                        # Progress: nothing up to this revision concerns us, so that its compaction need not either.
                        next_revision = max(next_revision, response.header.revision + 1)
        except AioRpcError as broken:
            error = classify(broken, wrote=False)
            if isinstance(error, Refused):
                await refusals.pause(error, math.inf)
            if not isinstance(error, Unavailable):
                raise error from broken
        except Refused as error:
            await refusals.pause(error, math.inf)
            raise
        except Retired:
            continue  # the next connection stands in its place
        except asyncio.InvalidStateError:
            pass  # grpc.aio: the stream ended before the first request was written
        finally:
            stream.cancel()
        connections.failed(member)
        await asyncio.sleep(RECONNECT_PAUSE_S)


def _event(event: Any) -> Event:
    deleted = event.type == rpc.Event.DELETE
    return Event(_key(event.kv), None if deleted else entry_of(event.kv), event.kv.mod_revision)
