"""A client's connections: one for each address, closed when the broker there has gone or is another registration's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Set

from highwater.client.cluster.connection import Connection


class BrokerConnections:
    """Made by `make` when they are first asked for."""

    def __init__(self, make: Callable[[str], Connection]) -> None:
        self._make = make
        self._open: dict[str, Connection] = {}  # by address
        self._epochs: dict[str, int] = {}  # the latest that was registered at each address
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Connection]:
        """Those that are open now, whatever is opened or closed meanwhile."""
        return iter(list(self._open.values()))

    def to(self, address: str) -> Connection:
        found = self._open.get(address)
        if found is None:
            found = self._open[address] = self._make(address)
        return found

    def follow(self, present: Mapping[str, int], gone: Set[str], *, began_anew: bool) -> None:
        """Metadata names the brokers that are `present`: broker epochs by address; `gone` are addresses of which it
        names none any more. `began_anew`: the epochs are not to be compared with those before.

        RULES 8.8: a registration may be another process's, on another host of the same name. What a host that was lost
        is asked over a connection that still seems to stand is never answered."""
        if began_anew:  # all are other registrations
            self._epochs = dict.fromkeys(self._epochs, 0)
        anew = {address for address, epoch in present.items() if self._epochs.get(address, epoch) < epoch}
        for address, epoch in present.items():
            self._epochs[address] = max(epoch, self._epochs.get(address, epoch))
        for address in gone:
            self._epochs.pop(address, None)
        for connection in self._open.values():
            connection.rest()
        for address in (gone | anew) & self._open.keys():
            closing = asyncio.create_task(self._open.pop(address).close(), name=f"closing {address}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """All of them; those that are asked for afterwards are new."""
        connections, self._open = list(self._open.values()), {}
        await asyncio.gather(*self._closing, *(connection.close() for connection in connections))
