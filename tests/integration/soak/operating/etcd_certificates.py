"""The certificates between the services and etcd are replaced in place, and so is their authority.

etcd reads its certificate and key at each handshake, and the authorities that it trusts when it starts: to change those
it is started again, as an operator does with one member after the other. Here is one member.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from running_cluster import KEYS

from highwater.cli.local_authority import CLIENT, LocalAuthority
from highwater.metadata.local import etcd_healthy
from highwater.metadata.state.brokers import read_brokers
from highwater.metadata.store.etcd_errors import StoreError
from highwater.rpc.connections.tls import TlsFiles
from soak.cluster import BROKERS, machine_of
from soak.operating.certificate_files import STEP_S, der, kept, place, shown, trust
from soak.operating.disturbances import RECOVERY_S
from soak.operating.state import Operating

MEMBER = "etcd"
_SHOWN_S = 3.0  # in which it shows what replaced its certificate
_REGISTERED_S = 10.0  # in which a broker whose lease was lost has another
_STOP_S = 20.0  # that SIGTERM may take
_START_S = 30.0


class EtcdCertificates:
    def __init__(self, operating: Operating) -> None:
        self._operating = operating
        self._soak = operating.soak
        self._etcd = operating.cluster.processes[MEMBER]
        self._address = operating.cluster.etcd
        self._files = operating.cluster.security / "etcd"
        self._authority = LocalAuthority(self._files)
        self._generation = 0

    async def rotate(self) -> None:
        random = self._soak.random("certificates of etcd")
        while not self._soak.stopped.is_set():
            await self._soak.pause(random.uniform(1, 8))
            if self._soak.stopped.is_set():
                return
            what = random.choice(("member", "services", "authority", "authority"))
            if what == "authority":
                await self._replace_authority()
            else:
                await self._replace(MEMBER if what == "member" else CLIENT)

    async def _replace(self, name: str) -> None:
        """etcd's own, which it shows at once, or that of the services, who connect anew with it: no lease is lost.
        Nothing else is done to etcd meanwhile, which might be another reason."""
        async with self._operating.etcd_is_kept:
            await self._healthy()
            await self._soak.pause(RECOVERY_S)
            self._operating.act("certificates, of etcd", name)
            begun, before = monotonic(), await self._epochs()
            place(self._authority, name, self._files)
            await self._shows_its_own()
            await self._soak.pause(STEP_S)
            await self._keep(before, begun)

    async def _replace_authority(self) -> None:
        """By the steps of docs/operations.md."""
        self._generation += 1
        self._operating.act("authority of etcd", f"number {self._generation}")
        former = self._authority
        retired = kept(self._files, CLIENT, self._operating.data / "retired" / f"etcd-{self._generation}")
        self._authority = LocalAuthority(self._operating.data / "authorities" / f"etcd-{self._generation}")
        await self._trust(former, self._authority)
        await self._soak.pause(STEP_S)
        for name in (MEMBER, CLIENT):
            await self._place(name)
        await self._soak.pause(STEP_S)
        if self._soak.stopped.is_set():
            return  # both are trusted
        await self._trust(self._authority)
        await self._shows_its_own()
        await self._former_is_refused(retired)
        await self._registered()

    async def _place(self, name: str) -> None:
        """Not while etcd starts, which ends where a certificate and its key do not belong together."""
        async with self._operating.etcd_is_kept:
            await self._healthy()
            place(self._authority, name, self._files)

    async def _trust(self, *authorities: LocalAuthority) -> None:
        async with self._operating.etcd_is_kept:
            trust(self._files, *authorities)
            disturbance = self._operating.disturbances.begin({MEMBER}, monotonic())
            try:
                self._etcd.terminate()
                if not await asyncio.to_thread(self._etcd.wait, _STOP_S):
                    self._soak.problem(f"SIGTERM does not end {MEMBER}")
                    self._etcd.kill()
            finally:
                self._etcd.start()
                disturbance.ended = monotonic()
            self._operating.acts["etcd started again"] += 1
            await self._healthy()

    async def _healthy(self) -> None:
        """It has started, after whatever it was."""
        tls = TlsFiles(self._files / "ca.pem", self._files / f"{CLIENT}.pem", self._files / f"{CLIENT}.key")
        ends = monotonic() + _START_S
        while not await asyncio.to_thread(etcd_healthy, self._address, tls=tls):
            if monotonic() > ends:
                self._soak.problem(f"{MEMBER} does not serve, {_START_S} s after its start: {self._etcd.last_words(3)}")
                return
            await asyncio.sleep(0.1)

    # -- what is looked at --------------------------------------------------------------------------------------------

    async def _shows_its_own(self) -> None:
        begun, wanted = monotonic(), der(self._files / f"{MEMBER}.pem")
        while (found := await shown(self._address, self._files)) != wanted:
            if monotonic() > self._operating.disturbances.due(begun, _SHOWN_S, MEMBER.__eq__):
                what = "lets its client in no more" if found is None else "shows a certificate that was replaced"
                self._soak.problem(f"{MEMBER} {what}, {monotonic() - begun:.0f} s after the replacement")
                return
            await asyncio.sleep(0.2)
        self._operating.note("etcd shows another certificate, s", monotonic() - begun)

    async def _former_is_refused(self, retired: TlsFiles) -> None:
        if await shown(self._address, self._files, retired) is not None:
            self._soak.problem(f"{MEMBER} takes a certificate of the authority that was replaced")
        else:
            self._operating.refusals["certificates of a former authority of etcd"] += 1

    async def _epochs(self) -> dict[int, int] | None:
        """Of all brokers; None: etcd does not answer."""
        try:
            async with asyncio.timeout(_REGISTERED_S):
                found = await read_brokers(self._operating.deployed.store, KEYS)
        except (TimeoutError, StoreError):
            return None
        return {number: each.broker_epoch for number, each in found.items()}

    async def _keep(self, before: dict[int, int] | None, begun: float) -> None:
        """Brokers that were registered still are, as the same, where nothing else was broken meanwhile."""
        after = await self._epochs()
        took_s = monotonic() - begun
        for number, epoch in (before or {}).items():
            machines = {MEMBER, machine_of(f"replica-manager-{number}")}
            if self._operating.disturbances.between(begun, begun + took_s, machines):
                continue
            self._operating.acts["leases kept while certificates of etcd were replaced"] += 1
            if after is None or after.get(number) != epoch:
                self._soak.problem(f"broker {number} lost its lease as certificates of etcd were replaced: {after}")

    async def _registered(self) -> None:
        """Whose certificate were taken no more would lose its lease."""
        begun = monotonic()
        while (after := await self._epochs()) is None or len(after) < BROKERS:
            if monotonic() > self._operating.disturbances.due(begun, _REGISTERED_S):
                self._soak.problem(f"brokers are not registered after the authority of etcd was replaced: {after}")
                return
            await asyncio.sleep(0.2)
        self._operating.note("registered after the authority of etcd was replaced, s", monotonic() - begun)
