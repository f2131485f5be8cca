"""What several files of tests share, first of all a cluster of real processes: it takes five seconds to start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from controller_world import World
from group_readers import Readers
from running_cluster import Deployment, deployment, running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store

_SHARED: pytest.StashKey[ExitStack] = pytest.StashKey()
_LAST_USER: pytest.StashKey[pytest.Item | None] = pytest.StashKey()
_CLUSTERS = {"shared_cluster", "group_cluster", "running_cluster", "LocalCluster", "Deployment", "HIGHWATER"}
"""Names in a test, or in its file, that stand for a cluster of processes."""
_SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "controller.session.timeout.ms": "1000",
    "file.delete.delay.ms": "0",
}
_GROUP_SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "controller.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "5",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.heartbeat.interval.ms": "500",
}


@pytest.fixture(scope="session")
def shared_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers. A test may kill any process and need not mend what it broke: `deployed` does."""
    with ExitStack() as stack:
        request.config.stash[_SHARED] = stack
        data: Path = tmp_path_factory.mktemp("cluster")
        yield stack.enter_context(running_cluster(data, settings=_SETTINGS))


@pytest.fixture
async def deployed(shared_cluster: LocalCluster) -> AsyncIterator[Deployment]:
    async with deployment(shared_cluster) as found:
        yield found


@pytest.fixture
async def world(etcd: LocalEtcd, store: Store, keys: Keys) -> AsyncIterator[World]:
    """Controllers over the real etcd, and doubles of brokers (`test_controller*.py`)."""
    async with World(etcd, store, keys) as made:
        yield made


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Clusters of processes have the machine to themselves: their leases are short."""
    for item in items:
        names = {*dir(getattr(item, "module", None)), *getattr(item, "fixturenames", ())}
        if names & _CLUSTERS:
            item.add_marker(pytest.mark.alone)


def pytest_collection_finish(session: pytest.Session) -> None:
    users = [item for item in session.items if "shared_cluster" in getattr(item, "fixturenames", ())]
    session.config.stash[_LAST_USER] = users[-1] if users else None


@pytest.hookimpl(trylast=True)  # after the fixtures of the test itself
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The shared cluster ends with the last test that uses it: idle, its processes would slow down the others."""
    if item is item.config.stash[_LAST_USER] and _SHARED in item.config.stash:
        item.config.stash[_SHARED].close()


@pytest.fixture(scope="module")
def group_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers whose groups have a short session timeout."""
    with running_cluster(tmp_path_factory.mktemp("groups"), settings=_GROUP_SETTINGS) as cluster:
        yield cluster


@pytest.fixture
async def grouped(group_cluster: LocalCluster) -> AsyncIterator[Deployment]:
    async with deployment(group_cluster) as found:
        yield found


@pytest.fixture
async def readers(grouped: Deployment) -> AsyncIterator[Readers]:
    async with AsyncExitStack() as stack:
        yield Readers(grouped, stack)
