"""The Kubernetes API by the official client: which cluster, as whom, and what its refusals mean to a user.

Objects are the API's own JSON, as `kubectl get -o json` shows it.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.stream import stream

from highwater.errors import UserError

KUBECONFIG = "~/.kube/config"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
MAX_OUTPUT_BYTES = 64 * 2**20
"""Of a command's output."""
_STDOUT, _STDERR, _STATUS = 1, 2, 3  # channels of the exec protocol
_HANDSHAKE = re.compile(r"Handshake status (\d+)[^-]*(?:-\+-\+-.*?-\+-\+- b?(.*))?", re.S)
ResultT = TypeVar("ResultT")


class KubernetesError(UserError):
    """The API refused, failed, or cannot be reached; `status` is HTTP's, 0 where nothing answered."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class CommandTimeoutError(KubernetesError):
    """A command in a container took too long. It may still be running there."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ran in a container. `status` is its exit status."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace")

    @property
    def complaint(self) -> str:
        """The words in which it said what went wrong, in one line: the last one."""
        said = (self.stderr or self.stdout).decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"it ended with status {self.status} and said nothing"


class KubernetesApi:
    """One cluster, and the namespace that is meant there. Usable from several threads."""

    def __init__(self, configuration: Any, namespace: str, context: str | None = None) -> None:
        self._configuration = configuration
        self.context = context
        self.namespace = namespace
        self.host: str = configuration.host
        api = client.ApiClient(configuration)
        self.core: Any = client.CoreV1Api(api)
        self.apps: Any = client.AppsV1Api(api)
        self.batch: Any = client.BatchV1Api(api)

    @classmethod
    def connect(cls, context: str | None = None, namespace: str | None = None) -> KubernetesApi:
        """By KUBECONFIG or ~/.kube/config, or in a pod by its service account. Nothing is asked yet. Raises
        `KubernetesError`."""
        configuration = client.Configuration()
        files = os.environ.get("KUBECONFIG") or KUBECONFIG
        there = any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file)
        try:
            if not there and context is None and (ACCOUNT / "token").exists():
                in_cluster: Any = config.load_incluster_config
                in_cluster(client_configuration=configuration)
                current = (ACCOUNT / "namespace").read_text().strip()
            elif not there:
                raise KubernetesError(
                    f"there is no Kubernetes configuration at {files}: set KUBECONFIG to the file that names the "
                    "cluster, as for kubectl"
                )
            else:
                current, context = _load(configuration, files, context)
        except ConfigException as error:
            raise KubernetesError(f"the Kubernetes configuration {files} is no use: {error}") from None
        configuration.retries = 1
        return cls(configuration, namespace or current, context)

    def call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """One of the client's methods; its answer as JSON. Raises `KubernetesError`."""
        response = self.open(method, *arguments, **options)
        try:
            return json.loads(response.data)
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error) from None
        except ValueError:
            raise KubernetesError(f"what answers at {self.host} is no Kubernetes API: it sends no JSON") from None

    def open(
        self, method: Callable[..., Any], *arguments: Any, read_timeout_s: float = READ_TIMEOUT_S, **options: Any
    ) -> Any:
        """The same; urllib3's response, still to be read. Raises `KubernetesError`."""
        timeout = (CONNECT_TIMEOUT_S, read_timeout_s)
        try:
            return method(*arguments, **options, _preload_content=False, _request_timeout=timeout)
        except ApiException as error:
            raise self._refused(error) from None
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error) from None

    def execute(self, pod: str, container: str, command: Iterable[str], timeout_s: float) -> Completed:
        """Runs a command in a container, without input. Raises `CommandTimeoutError`, and `KubernetesError` where it
        could not be run; what it said and its exit status are the result otherwise."""
        command = list(command)
        deadline = time.monotonic() + timeout_s
        return _within(
            timeout_s,
            lambda: self._execute(pod, container, command, deadline),
            f"{' '.join(command)[:80]} in {pod} ({container})",
        )

    def _execute(self, pod: str, container: str, command: list[str], deadline: float) -> Completed:
        # `stream` changes its client while it connects: each has its own.
        core = client.CoreV1Api(client.ApiClient(self._configuration))
        try:
            socket = stream(
                core.connect_get_namespaced_pod_exec, pod, self.namespace, command=command, container=container,
                stdin=False, stdout=True, stderr=True, tty=False, binary=True, _preload_content=False,
            )  # fmt: skip
        except ApiException as error:
            raise self._refused(error) from None
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error) from None
        said: dict[int, list[bytes]] = {_STDOUT: [], _STDERR: [], _STATUS: []}
        size = 0
        try:
            while socket.is_open() and time.monotonic() < deadline:
                socket.update(timeout=max(0.0, deadline - time.monotonic()))
                size += _drain(socket, said)
                if size > MAX_OUTPUT_BYTES:
                    raise KubernetesError(f"{' '.join(command)[:80]} in {pod} said more than {MAX_OUTPUT_BYTES} bytes")
            _drain(socket, said)
        finally:
            with suppress(Exception):  # it may be broken already
                socket.close()
        return Completed(
            _exit_status(b"".join(said[_STATUS]), pod, container), b"".join(said[_STDOUT]), b"".join(said[_STDERR])
        )

    # Errors

    def _unreachable(self, error: Exception) -> KubernetesError:
        reason = getattr(error, "reason", None) or error
        why = re.sub(r"^.*?>: ", "", str(reason)) or type(reason).__name__
        return KubernetesError(
            f"the Kubernetes API at {self.host} cannot be reached: {why}. Is it the right cluster "
            "(KUBECONFIG, --context)? `kubectl version` asks it the same way"
        )

    def _refused(self, error: ApiException) -> KubernetesError:
        status, body = error.status or 0, error.body
        if not status:  # the handshake of a command's stream
            found = _HANDSHAKE.search(str(error.reason))
            if found is None:
                return self._unreachable(Exception(error.reason))
            status, body = int(found[1]), (found[2] or "").strip("'\"")
        message = _message(body) or str(error.reason)
        match status:
            case 401:
                return KubernetesError(
                    f"the Kubernetes API at {self.host} does not know who you are: log in again, or choose another "
                    "user with --context",
                    status,
                )
            case 403:
                return KubernetesError(
                    f"the Kubernetes API forbids it: {message}. docs/kubernetes.md has a Role with what "
                    "`highwater kube` needs",
                    status,
                )
        return KubernetesError(f"the Kubernetes API refuses: {message}", status)


def _load(configuration: Any, files: str, context: str | None) -> tuple[str, str]:
    """The namespace of the context, and its name. Raises `ConfigException`."""
    contexts: Any = config.list_kube_config_contexts
    load: Any = config.load_kube_config
    named, current = contexts(config_file=files)
    if context is not None and context not in (names := [one["name"] for one in named]):
        raise KubernetesError(f"{files} has no context {context!r}: it has {', '.join(names)}")
    load(config_file=files, context=context, client_configuration=configuration)
    chosen = next((one for one in named if one["name"] == context), current)
    return str((chosen or {}).get("context", {}).get("namespace") or "default"), str((chosen or {}).get("name") or "")


def _message(body: Any) -> str:
    """The message of a Status object, where the body is one."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        found = re.search(r'"message":"((?:[^"\\]|\\.)*)"', text)  # from the text of a handshake's exception
        return found[1].replace('\\\\"', '"').replace('\\"', '"') if found else text.strip()[:500]


def _drain(socket: Any, said: dict[int, list[bytes]]) -> int:
    """Reads to the end, and returns how many bytes there were."""
    size = 0
    for channel, parts in said.items():
        while part := socket.read_channel(channel):
            parts.append(part)
            size += len(part)
    return size


def _exit_status(status: bytes, pod: str, container: str) -> int:
    try:
        found = json.loads(status)
    except ValueError:
        raise KubernetesError(f"the connection to {pod} ({container}) was lost while a command ran there") from None
    if found.get("status") == "Success":
        return 0
    for cause in found.get("details", {}).get("causes", ()):
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise KubernetesError(f"no command can be run in {pod} ({container}): {found.get('message', 'no reason given')}")


def _within(timeout_s: float, work: Callable[[], ResultT], what: str) -> ResultT:
    """Raises `CommandTimeoutError`. The client's sockets know no timeout of their own: a thread that is late is left
    behind."""
    outcome: list[ResultT] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(timeout_s + 1)
    if outcome:
        return outcome[0]
    late = time.monotonic() - began >= timeout_s
    if not failure or (late and isinstance(failure[0], KubernetesError)):
        raise CommandTimeoutError(f"{what} did not end within {timeout_s:g} s")
    if isinstance(failure[0], KubernetesError):
        raise failure[0]
    raise KubernetesError(f"{what} broke off: {failure[0]}") from failure[0]
