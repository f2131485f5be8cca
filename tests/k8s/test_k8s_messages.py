"""What goes wrong is told to who looks, with what to do about it: by Helm, by `highwater kube status`, or by the log of
what fails."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_cluster import CommandError, Release, RunningLoad, command, highwater, until
from small_volume import may_mount, mounted

_SEEN_S = 120.0
_MEGABYTE = 1 << 20


def status(release: Release) -> str:
    return highwater(release, "kube", "status")


def until_said(ask: Any, *wanted: str) -> None:
    """Prints the lines that say it. What it is folded into lines by does not count."""
    said = ""

    def is_said() -> bool:
        nonlocal said
        try:
            said = ask()
        except CommandError as error:  # not yet started
            said = str(error)
        return all(one in " ".join(said.split()) for one in wanted)

    try:
        until(is_said, str(wanted), _SEEN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; it says: {said[-3000:]}") from None
    for line in said.splitlines():
        if any(one in line for one in wanted):
            print(line)


def logs(release: Release, pod: str, container: str) -> str:
    return release.kubectl("logs", pod, "-c", container, "--tail=200")


def test_a_pod_that_no_node_takes(release: Release, values: dict[str, Any]) -> None:
    nowhere = {**values, "broker": {**values["broker"], "nodeSelector": {"no-node": "has-this"}}}
    release.install(nowhere, wait=False)
    until_said(lambda: status(release), "unschedulable", "no node takes it: add one or lower its requests")


def test_an_etcd_that_is_not_there(release: Release, values: dict[str, Any]) -> None:
    elsewhere = {"enabled": False, "endpoints": ["etcd.nowhere.svc.cluster.local:2379"]}
    release.install({**values, "etcd": elsewhere}, wait=False)
    for pod, container in ((release.pod("controller", 0), "controller"), (release.pod("broker", 0), "replica-manager")):
        until_said(
            lambda pod=pod, container=container: logs(release, pod, container),
            "etcd cannot be reached at etcd.nowhere.svc.cluster.local:2379",
            "name its members in the setting etcd",
        )
    until_said(lambda: status(release), "no controller is known to act", "without etcd's quorum none can act")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"settings": {"min.insync.replicas": 3}}, "make it at most 2"),
        ({"settings": {"log.retention.hour": 3}}, "log.retention.hour"),
        ({"broker": {"storage": {"size": "much"}}}, "size"),
    ],
)
def test_a_wrong_value(release: Release, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        release.install(wrong)
    with pytest.raises(CommandError, match="NotFound|not found"):
        release.kubectl("get", "namespace", release.namespace)  # Helm has asked for nothing


def test_the_volumes_of_two_brokers_swapped(release: Release, values: dict[str, Any]) -> None:
    release.install(values)
    swap_volumes(release, "data-0-highwater-broker-0", "data-0-highwater-broker-1")
    for mine, other in ((0, 1), (1, 0)):
        until_said(
            lambda mine=mine: logs(release, release.pod("broker", mine), "log-storage"),
            f"belongs to broker {other}, this is {mine}",
            "where the volumes of two brokers were swapped, give each broker its own back",
        )
    until_said(lambda: status(release), "crashes again", "--previous says why")
    # What it says is all that there is to do.
    swap_volumes(release, "data-0-highwater-broker-0", "data-0-highwater-broker-1")
    until(release.installed.all_ready, "all is ready again", 180)
    RunningLoad.start(release, values_image(values), seconds=3).finish(120)


def swap_volumes(release: Release, *claims: str) -> None:
    sets = f"statefulset/{release.name}-broker"
    release.kubectl("scale", sets, "--replicas=0")
    until(lambda: not release.installed.pods("broker"), "the brokers' pods are gone", 180)
    old = [release.get("persistentvolumeclaim", claim) for claim in claims]
    volumes = [claim["spec"]["volumeName"] for claim in old]
    for volume in volumes:
        command("kubectl", "patch", "pv", volume, "-p", '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}')
    release.kubectl("delete", "persistentvolumeclaim", *claims)
    for claim, volume in zip(old, reversed(volumes), strict=True):
        command("kubectl", "patch", "pv", volume, "--type=json", "-p", '[{"op":"remove","path":"/spec/claimRef"}]')
        metadata = {"name": claim["metadata"]["name"], "labels": claim["metadata"].get("labels", {})}
        spec = {**claim["spec"], "volumeName": volume}
        made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        release.kubectl("apply", "-f", "-", stdin=json.dumps(made))
        command("kubectl", "patch", "pv", volume, "-p", '{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}')
    release.kubectl("scale", sets, "--replicas=3")


def values_image(values: dict[str, Any]) -> str:
    return "{repository}:{tag}".format(**values["image"])


def on_the_node() -> bool:
    """Whether this machine is the only node: its file systems are ours to mount."""
    try:
        nodes = json.loads(command("kubectl", "get", "nodes", "-o", "json"))["items"]
    except (CommandError, OSError):
        return False
    boots = {node["status"]["nodeInfo"]["bootID"] for node in nodes}
    return boots == {Path("/proc/sys/kernel/random/boot_id").read_text().strip()} and may_mount()


@contextmanager
def small_volumes(release: Release, directory: Path, count: int, megabytes: int) -> Iterator[list[Path]]:
    """Volumes of a storage class of their own, each a file system of that size."""
    name = release.namespace
    with ExitStack() as stack:
        paths = []
        for number in range(count):
            path = directory / str(number)
            path.mkdir()
            stack.enter_context(mounted(path, megabytes * _MEGABYTE))
            path.chmod(0o777)
            paths.append(path)
        objects: list[dict[str, Any]] = [
            {
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
            },
            *(
                {
                    "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{name}-{number}"},
                    "spec": {
                        "storageClassName": name, "capacity": {"storage": f"{megabytes}Mi"},
                        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(path)},
                        "persistentVolumeReclaimPolicy": "Retain",
                    },
                }
                for number, path in enumerate(paths)
            ),
        ]  # fmt: skip
        command("kubectl", "apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
        try:
            yield paths
        finally:
            release.remove()
            command("kubectl", "delete", "storageclass", name)
            command("kubectl", "delete", "pv", *(f"{name}-{number}" for number in range(count)))


def test_a_volume_that_is_full_takes_appends_again_when_it_grows(
    release: Release, values: dict[str, Any], image: str, tmp_path: Path
) -> None:
    if not on_the_node():
        pytest.skip("the volumes are file systems that this test mounts: it has to run on the only node, as root")
    tmp_path.chmod(0o755)
    with small_volumes(release, tmp_path, 3, 256) as paths:
        storage = {"size": "256Mi", "storageClass": release.namespace}
        small = {"log.segment.bytes": 4 * _MEGABYTE}
        release.install({**values, "settings": small | SAFE, "broker": {**values["broker"], "storage": storage}})
        restarts = release.restarts()
        load = RunningLoad.start(release, image, seconds=600)
        load.wait_until_it_writes()
        load.begin_round()
        for path in paths:
            fill(path)
        until_said(lambda: status(release), "is full: its logs take nothing", "expand its claim, or make space")
        until_said(
            lambda: "".join(logs(release, release.pod("broker", number), "log-storage") for number in range(3)),
            "is full: appends to its logs are refused until there is space", "no restart is needed",
        )  # fmt: skip
        load.begin_round()
        for path in paths:
            command("mount", "-o", f"remount,size={1024 * _MEGABYTE}", str(path))
        until(lambda: "is full" not in status(release), "there is space again", 60)
        load.begin_round()
        load.stop()
        found = load.finish(300)
        print(f"expanded: {found}")
        assert found["rounds"][1] > 1  # appends were refused
        assert release.restarts() == restarts


SAFE = {"default.replication.factor": 3, "min.insync.replicas": 2}


def fill(path: Path) -> None:
    with open(path / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                os.write(filler.fileno(), bytes(_MEGABYTE))
        except OSError:
            return
