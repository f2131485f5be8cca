"""Certificates, tokens and the authority are replaced in place, under load, and nothing is started again for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from highwater.cli.local_authority import CLIENT, LocalAuthority
from highwater.cli.local_cluster import controller_name
from highwater.rpc.connections.tls import LOOK_S, TlsFiles
from soak.cluster import BROKERS, CONTROLLERS, machine_of
from soak.operating.certificate_files import STEP_S, der, kept, place, shown, trust
from soak.operating.principals import NOBODY, USERS, User
from soak.operating.state import Operating

SERVICES = (*map(controller_name, range(CONTROLLERS)), *(f"broker-{number}" for number in range(1, BROKERS + 1)))
CLIENTS = (CLIENT, NOBODY, *(user.name for user in USERS if not user.by_token))
_TAKEN_UP_S = LOOK_S + 3.0  # in which a server shows what replaced its certificate


class Certificates:
    def __init__(self, operating: Operating) -> None:
        self._operating = operating
        self._soak = operating.soak
        self._security = operating.cluster.security
        self._authority = LocalAuthority(self._security)
        self._generation = 0
        self._retired: TlsFiles | None = None  # of an authority that nobody trusts any more

    def issue_to_clients(self) -> None:
        for name in CLIENTS:
            place(self._authority, name, self._security)

    async def rotate(self) -> None:
        """Leaves, some or all, or the authority, again and again."""
        random = self._soak.random("certificates")
        while not self._soak.stopped.is_set():
            what = random.choice(("one", "one", "all", "authority"))
            if what == "authority":
                await self._replace_authority()
            else:
                names = [random.choice((*SERVICES, *CLIENTS))] if what == "one" else [*SERVICES, *CLIENTS]
                self._operating.act(f"certificates, {what}", " ".join(names) if what == "one" else "")
                for name in names:
                    await self._replace(name)
                await self._taken_up([name for name in names if name in SERVICES])
            await self._soak.pause(random.uniform(1, 8))

    async def _replace(self, name: str) -> None:
        place(self._authority, name, self._security)
        await asyncio.sleep(0)

    async def _replace_authority(self) -> None:
        """By the three steps of docs/security.md."""
        self._generation += 1
        self._operating.act("authority", f"number {self._generation}")
        former = self._authority
        retired = kept(self._security, CLIENT, self._operating.data / "retired" / str(self._generation))
        self._authority = LocalAuthority(self._operating.data / "authorities" / str(self._generation))
        trust(self._security, former, self._authority)
        await self._soak.pause(STEP_S)
        for name in (*SERVICES, *CLIENTS):
            await self._replace(name)
        await self._soak.pause(STEP_S)
        if self._soak.stopped.is_set():
            return  # both are trusted
        trust(self._security, self._authority)
        await self._soak.pause(STEP_S)
        if self._soak.stopped.is_set():
            return
        self._retired = retired
        await self._taken_up(SERVICES)
        await self._former_is_refused()

    # -- what servers show and take -----------------------------------------------------------------------------------

    def _addresses(self, name: str) -> list[str]:
        """Where it listens by TLS."""
        cluster = self._operating.cluster
        if name.startswith("controller"):
            return [cluster.addresses[name]]
        number = int(name.rpartition("-")[2])
        return [cluster.addresses[f"replica-manager-{number}"], cluster.bootstrap.split(",")[number - 1]]

    async def _taken_up(self, names: Sequence[str]) -> None:
        """Every one of them shows the certificate that stands in its file, in time."""
        begun = monotonic()
        # Side by side: who is looked at when its time is up may have been broken since.
        looks = (self._shows(name, address, begun) for name in names for address in self._addresses(name))
        await asyncio.gather(*looks)

    async def _shows(self, name: str, address: str, begun: float) -> None:
        wanted = der(self._security / f"{name}.pem")
        machine = machine_of(name)
        while True:
            found = await shown(address, self._security)
            if found == wanted:
                self._operating.note("a certificate taken up, s", monotonic() - begun)
                return
            due = self._operating.disturbances.due(begun, _TAKEN_UP_S, machine.__eq__)
            if monotonic() > due:
                what = "does not let its peer in" if found is None else "shows a certificate that was replaced"
                self._soak.problem(f"{name} at {address} {what}, {monotonic() - begun:.0f} s after the replacement")
                return
            await asyncio.sleep(0.5)

    async def _former_is_refused(self) -> None:
        for name in SERVICES:
            for address in self._addresses(name):
                if await shown(address, self._security, self._retired) is not None:
                    self._soak.problem(f"{name} at {address} takes a certificate of the authority that was replaced")
                else:
                    self._operating.refusals["certificates of a former authority"] += 1


class Tokens:
    """Each user's token is replaced without a break, and the one of before counts no more."""

    def __init__(self, operating: Operating) -> None:
        self._operating = operating
        self._soak = operating.soak

    async def rotate(self) -> None:
        random = self._soak.random("tokens")
        users = [user for user in USERS if user.by_token]
        while not self._soak.stopped.is_set():
            await self._replace(random.choice(users))
            await self._soak.pause(random.uniform(0.5, 4))

    async def _replace(self, user: User) -> None:
        identities = self._operating.identities
        self._operating.act("token", user.principal)
        before, after = identities.shown(user), identities.add_token(user)
        identities.show(user, after)
        await self._soak.pause(STEP_S)  # calls with the one of before may stand before a broker that is paused
        identities.retire(user, before)
