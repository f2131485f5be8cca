from __future__ import annotations

import pytest
from append_server import TRANSPORTS

from highwater.log_storage.segment.unsynced_segments import unsynced_segments


@pytest.fixture(autouse=True)
def no_segments_of_others() -> None:
    """Logs that other tests left wait for the collector, which may not come in time: with 200 of their segments in the
    process's count no log would roll any more."""
    for segment in list(unsynced_segments._segments):
        unsynced_segments.discard(segment)


@pytest.fixture(params=TRANSPORTS)
def each_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test twice: with the appends of `log_storage_client.Storage` over each."""
    monkeypatch.setattr("log_storage_client.appends_over", request.param)
