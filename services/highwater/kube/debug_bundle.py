"""Everything that whoever helps asks for, in one archive, without secrets: objects, events, logs, metrics, etcd's keys.

Each part is bounded, and one that fails is replaced by its error. `manifest.json` says what there is and what there is
not.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes import client

from highwater import __version__
from highwater.errors import UserError
from highwater.kube.in_pod import etcd_report, pod_report, python
from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.pod import Pod
from highwater.kube.redaction import redact, redact_text
from highwater.kube.release import BROKER, CONTROLLER, ETCD, REPLICA_MANAGER, Release
from highwater.kube.status.assembly import assemble
from highwater.kube.status.observation import container_to_ask, observe
from highwater.kube.status.values import metrics_urls
from highwater.metadata.schema.keys import ROOT

LOG_BYTES = 2 * 2**20
"""Of each container's log, and of each one before the last restart: the end of it."""
LOG_LINES = 50_000
ETCD_BYTES = 16 * 2**20
EVENTS = 1000
_ETCD_METRICS_PORT = 2381
_COMMAND_TIMEOUT_S = 60.0
_HELM_TIMEOUT_S = 30.0
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    """In the archive."""
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Entry:
    """A part as the manifest has it."""

    name: str
    bytes: int
    seconds: float
    error: str


def write(release: Release, out: Path, timeout_s: float, told: Callable[[Entry], None]) -> list[Entry]:
    """Writes the archive, which others than its owner cannot read, and gives what is in it. What has not been read when
    the time is up is left out. Raises `UserError` where the file cannot be written, and `KubernetesError` where not
    even the pods are told."""
    began = time.monotonic()
    created = datetime.now(UTC)
    parts = list(_parts(release))
    entries: list[Entry] = []
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with (
            open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            root = f"highwater-{release.name}-{created:%Y%m%dT%H%M%SZ}"
            for part, data, entry in _read(parts, began + timeout_s):
                name = part.name if not entry.error else f"{part.name}.error.txt"
                _add(archive, f"{root}/{name}", data, created)
                entries.append(entry)
                told(entry)
            manifest = {
                "created": created.isoformat(timespec="seconds"),
                "seconds": round(time.monotonic() - began, 1),
                "highwater": __version__,
                "release": release.name,
                "namespace": release.namespace,
                "limits": {"log_bytes": LOG_BYTES, "log_lines": LOG_LINES, "etcd_bytes": ETCD_BYTES, "events": EVENTS},
                "left_out": "Secrets, values of keys that are named as secrets are, private keys, passwords in URLs",
                "parts": [asdict(one) for one in entries],
            }
            _add(archive, f"{root}/manifest.json", _json(manifest), created)
        partial.replace(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}; name another file with --out") from None
    finally:
        with suppress(OSError):  # it has its name by now
            partial.unlink()
    return entries


def _read(parts: Sequence[Part], deadline: float) -> Iterator[tuple[Part, bytes, Entry]]:
    def read(part: Part) -> tuple[bytes, Entry]:
        began = time.monotonic()
        if began > deadline:
            error = "left out: the time was up (--timeout)"
            return error.encode(), Entry(part.name, 0, 0.0, error)
        try:
            data, error = part.read(), ""
        except Exception as failure:  # of any kind: the rest is wanted all the same
            error = redact_text(str(failure) or type(failure).__name__)
            data = error.encode()
        return data, Entry(part.name, len(data), round(time.monotonic() - began, 2), error)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for some in _batches(parts, 2 * _AT_ONCE):  # so many are in memory
            for part, (data, entry) in zip(some, pool.map(read, some), strict=True):
                yield part, data, entry


def _batches(parts: Sequence[Part], size: int) -> Iterator[Sequence[Part]]:
    for start in range(0, len(parts), size):
        yield parts[start : start + size]


def _add(archive: tarfile.TarFile, name: str, data: bytes, created: datetime) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), int(created.timestamp()), 0o600
    archive.addfile(info, io.BytesIO(data))


# The parts


def _parts(release: Release) -> Iterator[Part]:
    """Raises `KubernetesError`."""
    core = release.api.core
    pods = release.pods()
    yield Part("status.json", lambda: _json(redact(asdict(assemble(observe(release), datetime.now(UTC))))))
    yield Part("kubernetes/version.json", lambda: _json(_version(release)))
    for kind in ("pods", "statefulsets", "claims", "configmaps"):
        yield Part(f"kubernetes/{kind}.json", lambda kind=kind: _json(redact(release.objects(kind))))  # type: ignore[misc]
    yield Part(
        "kubernetes/events.json",
        lambda: _json(redact(release.api.call(core.list_namespaced_event, release.namespace, limit=EVENTS)["items"])),
    )
    yield Part("kubernetes/nodes.json", lambda: _json(redact(release.api.call(core.list_node)["items"])))
    yield Part("helm/values.json", lambda: _values(release))
    asker = _asker(pods)
    yield Part("etcd/members.json", lambda: redact_text(_ask(release, asker, python(etcd_report))).encode())
    yield Part("etcd/keys.jsonl", lambda: _keys(release, asker))
    for pod in pods:
        yield Part(f"metrics/{pod.name}.txt", lambda pod=pod: _metrics(release, pod, asker))  # type: ignore[misc]
    for pod in pods:
        for one in pod.containers:
            for previous in (False, True) if one.restarts else (False,):
                name = f"logs/{pod.name}/{one.name}{'.previous' if previous else ''}.log"
                yield Part(
                    name,
                    lambda pod=pod.name, container=one.name, previous=previous: _log(  # type: ignore[misc]
                        release, pod, container, previous
                    ),
                )


def _version(release: Release) -> Any:
    return release.api.call(client.VersionApi(release.api.core.api_client).get_code)


def _values(release: Release) -> bytes:
    """The values that Helm was given. Helm keeps them in a Secret, which it reads itself."""
    helm = shutil.which("helm")
    if helm is None:
        raise UserError("helm is not on the PATH: run `helm get values` yourself, and look for secrets in it")
    command = [helm, "get", "values", release.name, "--namespace", release.namespace, "--output", "json"]
    if release.api.context:
        command.append(f"--kube-context={release.api.context}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_HELM_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise UserError(f"helm get values: {done.stderr.strip() or done.returncode}")
    return _json(redact(json.loads(done.stdout)))


def _asker(pods: Sequence[Pod]) -> tuple[str, str] | None:
    """A pod and its container that reach etcd."""
    for component in (CONTROLLER, BROKER, REPLICA_MANAGER):
        for pod in pods:
            if pod.component == component and (container := container_to_ask(pod)) is not None:
                return pod.name, container
    return None


def _ask(release: Release, asker: tuple[str, str] | None, command: Sequence[str]) -> str:
    if asker is None:
        raise KubernetesError("no controller and no broker runs that could ask etcd")
    pod, container = asker
    return release.execute(pod, command, container=container, timeout_s=_COMMAND_TIMEOUT_S).text


def _keys(release: Release, asker: tuple[str, str] | None) -> bytes:
    lines = _ask(release, asker, python(etcd_report, "keys", f"{ROOT}/", str(ETCD_BYTES))).splitlines()
    return "".join(json.dumps(redact(json.loads(line))) + "\n" for line in lines).encode()


def _metrics(release: Release, pod: Pod, asker: tuple[str, str] | None) -> bytes:
    if pod.component == ETCD:
        if not pod.address:
            raise KubernetesError("it has no address")
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        told = _ask(release, asker, python(pod_report, f"http://{host}:{_ETCD_METRICS_PORT}/metrics"))
    else:
        container = container_to_ask(pod)
        if container is None:
            raise KubernetesError("none of its containers runs")
        told = _ask(release, (pod.name, container), python(pod_report, *metrics_urls(pod)))
    report = json.loads(told)
    texts = [f"# {url}\n{text}" for url, text in report["metrics"].items()]
    texts += [f"# {url}\n# error: {error}\n" for url, error in report["errors"].items()]
    return "\n".join(texts).encode()


def _log(release: Release, pod: str, container: str, previous: bool) -> bytes:
    data = release.logs(
        pod, container, previous=previous, tail_lines=LOG_LINES, last_bytes=LOG_BYTES, timestamps=True
    )  # fmt: skip
    return redact_text(data.decode(errors="replace")).encode()


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, default=str).encode() + b"\n"
