"""A cluster of real processes that the tests of `test_cluster_*.py` share: it takes five seconds to start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from running_cluster import Deployment, deployment, running_cluster

from highwater.cli.local_cluster import LocalCluster

_SHARED: pytest.StashKey[ExitStack] = pytest.StashKey()
_SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "controller.session.timeout.ms": "1000",
    "file.delete.delay.ms": "0",
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


@pytest.hookimpl(trylast=True)  # after the fixtures of the test itself
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The shared cluster ends with the last test in a row that uses it: twelve idle processes slow down the others."""
    if nextitem is None or "shared_cluster" not in getattr(nextitem, "fixturenames", ()):
        stack = item.config.stash.get(_SHARED, None)
        if stack is not None:
            stack.close()
