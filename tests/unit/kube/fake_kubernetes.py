"""The part of the Kubernetes API that `highwater.kube` uses, over real HTTP and WebSockets on loopback."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
Command = Callable[[str, str, list[str]], tuple[int, str, str]]
LABELS = {"app.kubernetes.io/name": "highwater", "app.kubernetes.io/managed-by": "Helm"}
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_GROUPS = {"statefulsets": "apps/v1", "poddisruptionbudgets": "policy/v1"}


def no_command(pod: str, container: str, command: list[str]) -> tuple[int, str, str]:
    return 127, "", "no such command\n"


@dataclass
class FakeKubernetes:
    """`objects` by kind ("pods") and name; requests are noted. What is deleted goes, and `deleted` may put it back."""

    objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    command: Command = no_command
    logs: dict[tuple[str, str, bool], bytes] = field(default_factory=dict)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    """Verb and resource."""
    deleted: Callable[[str, str], None] = lambda kind, name: None
    ephemeral: Callable[[str, Object], tuple[int, str]] = lambda pod, container: (0, "")
    """Runs an ephemeral container: exit status and what it said."""
    created: Callable[[str, Object], None] = lambda kind, found: None
    patched: Callable[[str, str], None] = lambda kind, name: None
    refuses_evictions: int = 0
    """So many times."""
    server: ThreadingHTTPServer | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def running(self, directory: Path, namespace: str = "logs") -> Iterator[str]:
        """The path of its kubeconfig."""
        api = self

        class Handler(_Handler):
            kubernetes = api

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield kubeconfig(directory, self.server.server_port, namespace)
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()

    def add(self, kind: str, *objects: Object) -> None:
        for one in objects:
            self.objects.setdefault(kind, {})[one["metadata"]["name"]] = one

    def release(self, name: str = "highwater", *, layout: str = "colocated", brokers: int = 3, etcd: int = 3) -> None:
        """All of it, ready."""
        services = {"replica-manager": brokers, "fetcher": brokers, "log-storage": brokers}
        counts = ({"broker": brokers} if layout == "colocated" else services) | {"controller": 2, "etcd": etcd}
        fullname = name if "highwater" in name else f"{name}-highwater"
        for component, count in counts.items():
            if not count:
                continue
            labels = LABELS | {"app.kubernetes.io/instance": name, "app.kubernetes.io/component": component}
            self.add(
                "statefulsets",
                {
                    "metadata": {"name": f"{fullname}-{component}", "labels": labels},
                    "spec": {"replicas": count},
                    "status": {"readyReplicas": count},
                },
            )
            for ordinal in range(count):
                self.add("pods", pod(f"{fullname}-{component}-{ordinal}", labels))
                if component in {"broker", "log-storage"}:
                    claim = f"data-0-{fullname}-{component}-{ordinal}"
                elif component == "etcd":
                    claim = f"data-{fullname}-{component}-{ordinal}"
                else:
                    continue
                self.add(
                    "persistentvolumeclaims",
                    {
                        "metadata": {"name": claim, "labels": labels},
                        "spec": {"resources": {"requests": {"storage": "2Gi"}}},
                        "status": {"phase": "Bound"},
                    },
                )


def pod(name: str, labels: dict[str, str], *, ready: bool = True, uid: str = "u1") -> Object:
    component = labels["app.kubernetes.io/component"]
    sidecars = ["log-storage", "fetcher"] if component == "broker" else []
    main = "replica-manager" if component == "broker" else component
    image = "quay.io/etcd:v3" if component == "etcd" else "highwater:1"

    def status(container: str) -> Object:
        return {
            "name": container,
            "ready": ready,
            "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "lastState": {},
        }

    claims = {
        "broker": [f"data-0-{name}"],
        "log-storage": [f"data-0-{name}"],
        "etcd": [f"data-{name}"],
    }.get(component, [])
    return {
        "metadata": {
            "name": name,
            "labels": labels,
            "uid": f"{name}-{uid}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "nodeName": "node-a",
            "initContainers": [{"name": one, "image": image, "restartPolicy": "Always"} for one in sidecars],
            "containers": [{"name": main, "image": image}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}} for claim in claims],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
            "initContainerStatuses": [status(one) for one in sidecars],
            "containerStatuses": [status(main)],
        },
    }


def kubeconfig(directory: Path, port: int, namespace: str) -> str:
    path = directory / "kubeconfig"
    context = {"cluster": "here", "user": "me", "namespace": namespace}
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "me", "user": {"token": "t"}}],
                "contexts": [
                    {"name": "default", "context": context},
                    {"name": "other", "context": context | {"namespace": "elsewhere"}},
                ],
                "current-context": "default",
            }
        )
    )
    return str(path)


def _selected(found: Object, selector: str) -> bool:
    labels = found["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, _, value in (one.partition("=") for one in selector.split(",") if one))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    kubernetes: FakeKubernetes

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        with self.kubernetes.lock:
            self.kubernetes.requests.append((self.command, self.path, body))
        found = re.fullmatch(
            r"/(?:api/v1|apis/[\w.]+/v\w+)(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?(?:/([a-z]+))?", parts.path
        )
        if found is None:
            return self._refuse(404, f"no such path {parts.path}")
        _, kind, name, part = found.groups()
        verb = {"GET": "get" if name else "list", "POST": "create", "DELETE": "delete", "PATCH": "patch"}[self.command]
        resource = f"{kind}/{part}" if part else kind
        if (verb, resource) in self.kubernetes.forbidden:
            return self._refuse(403, f'{kind} is forbidden: User "me" cannot {verb} resource "{resource}"')
        if name is None and self.command == "POST":
            self.kubernetes.add(kind, body)
            self._answer(body, 201)
            return self.kubernetes.created(kind, body)
        if name is None:
            selector = query.get("labelSelector", [""])[0]
            items = list(self.kubernetes.objects.get(kind, {}).values())
            return self._answer({"items": [one for one in items if _selected(one, selector)]})
        there = self.kubernetes.objects.get(kind, {}).get(name)
        if there is None:
            return self._refuse(404, f'{kind} "{name}" not found')
        return self._one(kind, name, part, there, query, body)

    do_GET = do_POST = do_DELETE = do_PATCH = _handle  # noqa: N815 - as `http.server` looks them up

    def _one(self, kind: str, name: str, part: str | None, there: Object, query: Any, body: Any) -> None:
        api = self.kubernetes
        if part == "exec":
            self._execute(name, query["container"][0], query["command"])
        elif part == "log":
            key = (name, query["container"][0], query.get("previous") == ["true"])
            if key not in api.logs:
                return self._refuse(400, f"previous terminated container {key[1]!r} in pod {name!r} not found")
            self._answer_bytes(api.logs[key], "text/plain")
        elif part == "eviction" and api.refuses_evictions > 0:
            api.refuses_evictions -= 1
            self._refuse(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        elif self.command == "DELETE" or part == "eviction":
            del api.objects[kind][name]
            self._answer({"status": "Success"})
            api.deleted(kind, name)
        elif part == "ephemeralcontainers":
            [container] = body["spec"]["ephemeralContainers"]
            status, said = api.ephemeral(name, container)
            api.logs[name, container["name"], False] = said.encode()
            ended = {"name": container["name"], "state": {"terminated": {"exitCode": status, "message": said}}}
            there["status"].setdefault("ephemeralContainerStatuses", []).append(ended)
            self._answer(there)
        elif self.command == "PATCH":
            _merge(there, body)
            api.patched(kind, name)
            self._answer(there)
        else:
            self._answer(there)

    def _answer(self, found: Object, status: int = 200) -> None:
        self._answer_bytes(json.dumps(found).encode(), "application/json", status)

    def _answer_bytes(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int, message: str) -> None:
        self._answer({"kind": "Status", "status": "Failure", "message": message, "code": status}, status)

    def _execute(self, pod: str, container: str, command: Sequence[str]) -> None:
        key = self.headers["Sec-WebSocket-Key"]
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header(
            "Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()
        )
        self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        self.end_headers()
        status, stdout, stderr = self.kubernetes.command(pod, container, list(command))
        outcome: Object = {"status": "Success"}
        if status:
            causes = [{"reason": "ExitCode", "message": str(status)}]
            outcome = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
        try:
            for channel, said in ((1, stdout), (2, stderr), (3, json.dumps(outcome))):
                if said:
                    self._frame(2, bytes([channel]) + said.encode())
            self._frame(8, struct.pack(">H", 1000))
        except OSError:
            pass  # the client did not wait for it
        self.close_connection = True

    def _frame(self, code: int, data: bytes) -> None:
        size = bytes([len(data)]) if len(data) < 126 else struct.pack(">BQ", 127, len(data))
        self.wfile.write(bytes([0x80 | code]) + size + data)
        self.wfile.flush()


def _merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value
