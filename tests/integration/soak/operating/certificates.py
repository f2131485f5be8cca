"""Certificates, tokens and the authority are replaced in place, under load, and nothing is started again for it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from highwater.atomic_file import replace_file
from highwater.cli.local_authority import CLIENT, LocalAuthority
from highwater.cli.local_cluster import controller_name
from highwater.rpc.connections.tls import LOOK_S, TlsFiles
from soak.cluster import BROKERS, CONTROLLERS, machine_of
from soak.operating.principals import NOBODY, USERS, User
from soak.operating.state import Operating

HOSTS = ("127.0.0.1", "localhost")
SERVICES = (*map(controller_name, range(CONTROLLERS)), *(f"broker-{number}" for number in range(1, BROKERS + 1)))
CLIENTS = (CLIENT, NOBODY, *(user.name for user in USERS if not user.by_token))
STEP_S = LOOK_S + 1.0
_TAKEN_UP_S = LOOK_S + 3.0  # in which a server shows what replaced its certificate
_ANSWER_S = 3.0


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
            self._place(name)

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
        self._place(name)
        await asyncio.sleep(0)

    def _place(self, name: str) -> None:
        files = self._authority.issue(name, HOSTS)
        for source, kind in ((files.key_file, "key"), (files.certificate_file, "pem")):
            target = self._security / f"{name}.{kind}"
            assert source is not None
            if source != target:
                replace_file(target, source.read_bytes())

    def _trust(self, *authorities: LocalAuthority) -> None:
        replace_file(self._security / "ca.pem", b"".join(map(_certificate_of, authorities)))

    async def _replace_authority(self) -> None:
        """By the three steps of docs/security.md."""
        self._generation += 1
        self._operating.act("authority", f"number {self._generation}")
        former = self._authority
        retired = _copies(self._security, CLIENT, self._operating.data / "retired" / str(self._generation))
        self._authority = LocalAuthority(self._operating.data / "authorities" / str(self._generation))
        self._trust(former, self._authority)
        await self._soak.pause(STEP_S)
        for name in (*SERVICES, *CLIENTS):
            await self._replace(name)
        await self._soak.pause(STEP_S)
        if self._soak.stopped.is_set():
            return  # both are trusted
        self._trust(self._authority)
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
        wanted = _der(self._security / f"{name}.pem")
        machine = machine_of(name)
        while True:
            shown = await self._shown(address)
            if shown == wanted:
                self._operating.note("a certificate taken up, s", monotonic() - begun)
                return
            due = self._operating.disturbances.due(begun, _TAKEN_UP_S, machine.__eq__)
            if monotonic() > due:
                what = "does not let its peer in" if shown is None else "shows a certificate that was replaced"
                self._soak.problem(f"{name} at {address} {what}, {monotonic() - begun:.0f} s after the replacement")
                return
            await asyncio.sleep(0.5)

    async def _shown(self, address: str, files: TlsFiles | None = None) -> bytes | None:
        """The server's certificate; None: no connection came about, or the server ended it at once."""
        security = self._security
        context = ssl.create_default_context(cafile=security / "ca.pem")
        context.set_alpn_protocols(["h2"])
        own = (security / f"{CLIENT}.pem", security / f"{CLIENT}.key")
        context.load_cert_chain(*(own if files is None else (files.files[1], files.files[2])))
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
                try:
                    # A server that refuses a certificate says so after the handshake; one that takes it sends settings.
                    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
                    if not await reader.read(1):
                        return None
                    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                    return bytes(shown) if shown else None
                finally:
                    writer.close()
        except (OSError, ssl.SSLError, TimeoutError):
            return None

    async def _former_is_refused(self) -> None:
        for name in SERVICES:
            for address in self._addresses(name):
                if await self._shown(address, self._retired) is not None:
                    self._soak.problem(f"{name} at {address} takes a certificate of the authority that was replaced")
                else:
                    self._operating.refusals["certificates of a former authority"] += 1


def _certificate_of(authority: LocalAuthority) -> bytes:
    ca_file = authority.files(CLIENT).ca_file
    assert ca_file is not None
    return ca_file.read_bytes()


def _copies(security: Path, name: str, target: Path) -> TlsFiles:
    target.mkdir(parents=True)
    files = [target / f"{name}.pem", target / f"{name}.key"]
    for file in files:
        replace_file(file, (security / file.name).read_bytes())
    return TlsFiles(security / "ca.pem", *files)


def _der(file: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(file.read_text())


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
