from __future__ import annotations

import pytest
from append_server import TRANSPORTS


@pytest.fixture(params=TRANSPORTS)
def each_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test twice: with the appends of `log_storage_client.Storage` over each."""
    monkeypatch.setattr("log_storage_client.appends_over", request.param)
