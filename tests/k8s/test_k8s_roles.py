"""The Roles of docs/kubernetes.md are enough for what they are given for, and for no more."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from kubernetes_cluster import Release

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md"
OPERATOR, CHAOS, METADATA = "highwater-operator", "highwater-chaos", "highwater-metadata"


def roles() -> list[dict[str, Any]]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = [one for block in blocks for one in yaml.safe_load_all(block)]
    return [one for one in found if isinstance(one, dict) and one.get("kind") == "Role"]


def account(release: Release, name: str, bound: Sequence[str], directory: Path) -> str:
    """The path of a kubeconfig of a service account that is made, with these Roles."""
    release.kubectl("create", "serviceaccount", name)
    for role in bound:
        subject = f"--serviceaccount={release.namespace}:{name}"
        release.kubectl("create", "rolebinding", f"{name}-{role}", f"--role={role}", subject)
    config = json.loads(release.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"] = [{"name": name, "user": {"token": release.kubectl("create", "token", name).strip()}}]
    config["contexts"][0]["context"]["user"] = name
    path = directory / f"{name}.json"
    path.write_text(json.dumps(config))
    return str(path)


def kube(release: Release, config: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "highwater.cli.main", "kube", *arguments, f"--namespace={release.namespace}"],
        env={**os.environ, "KUBECONFIG": config}, capture_output=True, text=True, timeout=700, check=False,
    )  # fmt: skip
    print(f"kube {' '.join(arguments)}: {done.returncode}\n{(done.stdout + done.stderr)[-1500:]}")
    return done.returncode, done.stdout + done.stderr


def test_the_documented_roles_are_enough(release: Release, values: dict[str, Any], tmp_path: Path) -> None:
    release.install({**values, "topics": [{"name": "events", "partitions": 3}]})
    documented = roles()
    assert {role["metadata"]["name"] for role in documented} == {OPERATOR, CHAOS, METADATA}
    for role in documented:
        role["metadata"]["namespace"] = release.namespace
        release.kubectl("apply", "-f", "-", stdin=json.dumps(role))

    operator = account(release, "operator", [OPERATOR], tmp_path)
    status, said = kube(release, operator, "status")
    assert status == 0, said
    assert "nothing is wrong" in said
    assert kube(release, operator, "logs", "--component", "broker", "--tail", "5")[0] == 0
    assert kube(release, operator, "debug-bundle", "--out", str(tmp_path / "bundle.tar.gz"))[0] == 0
    for forbidden in (["chaos", "--yes", "--duration=1", "--kill=broker"], ["rebuild", "--yes"]):
        status, said = kube(release, operator, *forbidden)
        assert status != 0
        assert "forbidden" in said
        assert "Traceback" not in said

    breaker = account(release, "breaker", [OPERATOR, CHAOS], tmp_path)
    for kind in ("broker", "container", "volume", "drain"):
        assert kube(release, breaker, "chaos", "--yes", "--duration=1", "--seed=1", f"--kill={kind}")[0] == 0

    keeper = account(release, "keeper", [OPERATOR, METADATA], tmp_path)
    assert kube(release, keeper, "backup", "--out", str(tmp_path))[0] == 0
    (backup,) = tmp_path.glob("highwater-*.gz")
    assert kube(release, keeper, "rebuild", "--dry-run", "--yes", "--no-backup")[0] == 0
    assert kube(release, keeper, "restore", str(backup), "--yes")[0] == 0
    status, said = kube(release, operator, "status")
    assert status == 0, said
    assert "nothing is wrong" in said
