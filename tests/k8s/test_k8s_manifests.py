"""The API server takes what k8s/ has and what the chart renders; Helm finds nothing to complain of."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes_cluster import CHART, CommandError, command

REPOSITORY = CHART.parents[1]
_PROMETHEUS = "monitoring.coreos.com"


@pytest.fixture(scope="module")
def namespace(image: str) -> Iterator[str]:
    name = f"hw-{uuid.uuid4().hex[:8]}"
    command("kubectl", "create", "namespace", name)
    yield name
    command("kubectl", "delete", "namespace", name, "--wait=false")


def is_accepted(namespace: str, manifest: str) -> None:
    """The Prometheus operator's objects are left out where the cluster does not have them."""
    objects = [one for one in yaml.safe_load_all(manifest) if one]
    assert objects
    try:
        command("kubectl", "get", f"podmonitors.{_PROMETHEUS}", "--namespace", namespace)
    except CommandError:
        objects = [one for one in objects if not one["apiVersion"].startswith(_PROMETHEUS)]
    applied = command(
        "kubectl", "--namespace", namespace, "apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(objects)
    )
    assert len(applied.splitlines()) == len(objects), applied


@pytest.mark.parametrize("manifest", sorted((REPOSITORY / "k8s").glob("*.yaml")), ids=lambda path: path.name)
def test_the_api_server_takes_each_manifest(namespace: str, manifest: Path) -> None:
    is_accepted(namespace, manifest.read_text())


@pytest.mark.parametrize("layout", ["colocated", "separate"])
@pytest.mark.parametrize("values", sorted((CHART / "ci").glob("*.yaml")), ids=lambda path: path.name)
def test_the_api_server_takes_what_the_chart_renders(namespace: str, values: Path, layout: str) -> None:
    version = json.loads(command("kubectl", "version", "-o", "json"))["serverVersion"]["gitVersion"]
    given = (f"--namespace={namespace}", f"--values={values}", f"--set=layout={layout}", f"--kube-version={version}")
    is_accepted(namespace, command("helm", "template", "release", str(CHART), *given))
    command("helm", "lint", "--strict", str(CHART), *given)


def test_an_object_that_is_none_is_refused(namespace: str) -> None:
    manifest = (REPOSITORY / "k8s" / "small.yaml").read_text()
    with pytest.raises(CommandError, match="serviceNam"):
        is_accepted(namespace, manifest.replace("serviceName:", "serviceNam:"))
