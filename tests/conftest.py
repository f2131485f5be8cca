"""What tests of more than one package share: a real etcd, and a cluster in it that no other test knows of."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import settings

from highwater.metadata.leases.controller_election import ControllerElection
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store

# One example may take long on a busy machine; what hangs is found by the time limit of its test.
settings.register_profile("highwater", deadline=None)
settings.load_profile("highwater")

# A shell ignores Ctrl-C for what it runs in the background, which all its children would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    running = LocalEtcd(tmp_path_factory.mktemp("etcd"), fsync=False)
    running.start()
    yield running
    running.kill()  # its data is thrown away: no need for the second that an orderly stop takes


@pytest.fixture
def etcd(shared_etcd: LocalEtcd) -> LocalEtcd:
    """One etcd for the whole run; do not stop it. `etcd.address` is `host:port`. Where it has ended, how it did is said
    at once: what waits for it would do so until the time of each test is up."""
    shared_etcd.await_healthy()
    return shared_etcd


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[LocalEtcd]:
    """An etcd for this test alone, to be killed and restarted at will."""
    running = LocalEtcd(tmp_path / "etcd", fsync=False)
    running.start()
    yield running
    running.kill()


@pytest.fixture
def cluster_name() -> str:
    """A cluster name of this test's own: nothing of other tests stands under its prefix."""
    return f"test-{uuid4().hex[:12]}"


@pytest.fixture
def keys(cluster_name: str) -> Keys:
    return Keys(cluster_name)


@pytest.fixture
async def store(etcd: LocalEtcd) -> AsyncIterator[Store]:
    async with Store([etcd.address]) as opened:
        yield opened


@pytest.fixture
async def term(store: Store, keys: Keys) -> AsyncIterator[ControllerTerm]:
    """The term of a controller elected for this test."""
    election = ControllerElection(
        store, keys, controller_id=0, address="c:0", incarnation="x", session_timeout_ms=10_000
    )
    yield await election.campaign()
    await election.resign()
