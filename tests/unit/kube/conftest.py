"""A fake Kubernetes with nothing in it, which KUBECONFIG names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_kubernetes import FakeKubernetes


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes()
    with fake.running(tmp_path) as config:
        monkeypatch.setenv("KUBECONFIG", config)
        yield fake
