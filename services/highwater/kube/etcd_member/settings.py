"""The settings of `python -m highwater.kube.etcd_member`, and etcd's configuration file."""

from __future__ import annotations

import argparse
import json
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from highwater.errors import UserError
from highwater.kube.etcd_member.peer_word import PeerTls
from highwater.metadata.store.tls import TlsSettings

_OURS = frozenset(
    {
        "name",
        "data-dir",
        "wal-dir",
        "listen-peer-urls",
        "listen-client-urls",
        "initial-advertise-peer-urls",
        "advertise-client-urls",
        "initial-cluster",
        "initial-cluster-state",
        "initial-cluster-token",
        "strict-reconfig-check",
        "force-new-cluster",
        "discovery",
        "discovery-srv",
    }
)
_PEER_TLS, _CLIENT_TLS = "peer-transport-security", "client-transport-security"


@dataclass(frozen=True, slots=True)
class MemberSettings:
    prefix: str
    ordinal: int
    members: int
    """How many there are to be. This one is one of them."""
    peer_url: str
    client_url: str
    listen_peer_url: str
    listen_client_url: str
    """All four with `{name}` and `{ordinal}` for those of a member."""
    token: str
    data_dir: Path
    output: Path
    timeout_s: float
    passed: Mapping[str, Any]
    """What goes to etcd's file as it is, by etcd's names."""

    @property
    def name(self) -> str:
        return self.name_of(self.ordinal)

    @property
    def others(self) -> list[int]:
        return [ordinal for ordinal in range(self.members) if ordinal != self.ordinal]

    def name_of(self, ordinal: int) -> str:
        return f"{self.prefix}{ordinal}"

    def of(self, template: str, ordinal: int | None = None) -> str:
        """The `template` for this member, or for the one of the ordinal."""
        ordinal = self.ordinal if ordinal is None else ordinal
        return template.replace("{name}", self.name_of(ordinal)).replace("{ordinal}", str(ordinal))

    @property
    def own_peer_url(self) -> str:
        return self.of(self.peer_url)

    @property
    def initial_cluster(self) -> str:
        """That of a new cluster."""
        return ",".join(f"{self.name_of(n)}={self.of(self.peer_url, n)}" for n in range(self.members))

    def config(self, state: str, initial_cluster: str) -> dict[str, Any]:
        """The whole of etcd's configuration file."""
        return {
            **self.passed,
            "name": self.name,
            "data-dir": str(self.data_dir),
            "listen-peer-urls": self.of(self.listen_peer_url),
            "listen-client-urls": self.of(self.listen_client_url),
            "initial-advertise-peer-urls": self.own_peer_url,
            "advertise-client-urls": self.of(self.client_url),
            "initial-cluster": initial_cluster,
            "initial-cluster-state": state,
            "initial-cluster-token": self.token,
            "strict-reconfig-check": True,
        }

    def client_tls(self) -> TlsSettings | None:
        """For calls of the other members, with the files that etcd serves its own clients with."""
        files = self.passed.get(_CLIENT_TLS)
        if not self.client_url.startswith("https://") or not files:
            return None
        paths = {key: Path(files[key]) for key in ("trusted-ca-file", "cert-file", "key-file") if files.get(key)}
        return TlsSettings(paths.get("trusted-ca-file"), paths.get("cert-file"), paths.get("key-file"))

    def peer_tls(self) -> PeerTls | None:
        """Raises `UserError` where the files that `https` needs are not given, or cannot be read."""
        if not self.peer_url.startswith("https://"):
            return None
        files = self.passed.get(_PEER_TLS, {})
        missing = [key for key in ("cert-file", "key-file", "trusted-ca-file") if not files.get(key)]
        if missing:
            raise UserError(f"peer URLs with https need --set {_PEER_TLS}.{missing[0]}=FILE")
        try:
            server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files["trusted-ca-file"])
            client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=files["trusted-ca-file"])
            for context in (server, client):
                context.load_cert_chain(files["cert-file"], files["key-file"])
        except OSError as error:  # an `SSLError` is one
            raise UserError(f"the files of {_PEER_TLS} cannot be used: {error}") from error
        if files.get("client-cert-auth"):
            server.verify_mode = ssl.CERT_REQUIRED
        return PeerTls(server, client)


def from_command_line(arguments: Sequence[str] | None = None) -> MemberSettings:
    """Ends the process with one sentence where they are wrong."""
    parser = argparse.ArgumentParser(prog="python -m highwater.kube.etcd_member")
    parser.add_argument("--name", required=True, help="this member's, the pod's: it ends with -ORDINAL")
    parser.add_argument("--members", required=True, type=int, help="how many members the cluster is to have")
    parser.add_argument("--peer-url", required=True, help="a member's peer URL, with {name} or {ordinal} in it")
    parser.add_argument("--client-url", required=True, help="a member's client URL, with {name} or {ordinal} in it")
    parser.add_argument("--listen-peer-url", help="default: every address, with the port of --peer-url")
    parser.add_argument("--listen-client-url", help="default: every address, with the port of --client-url")
    parser.add_argument("--token", required=True, help="the name of this cluster, different from any other's")
    parser.add_argument("--data-dir", required=True, type=Path, help="etcd's, a directory below the volume's own")
    parser.add_argument("--output", required=True, type=Path, help="the file that is etcd's --config-file")
    parser.add_argument("--timeout-s", type=float, default=900, help="how long to wait for the other members")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="passed on to etcd, by its names; a dot leads into a section (client-transport-security.cert-file=FILE)",
    )  # fmt: skip
    parsed = parser.parse_args(arguments)
    named = re.fullmatch(r"(.*-)(0|[1-9]\d*)", parsed.name)
    if named is None:
        parser.exit(1, f"--name {parsed.name}: it must end with a dash and the ordinal, as a StatefulSet's pods do\n")
    ordinal = int(named[2])
    if not ordinal < parsed.members:
        parser.exit(1, f"--name {parsed.name}: with --members {parsed.members} the last one is {parsed.members - 1}\n")
    for option, url in (("--peer-url", parsed.peer_url), ("--client-url", parsed.client_url)):
        if not _is_url(url) or (parsed.members > 1 and "{name}" not in url and "{ordinal}" not in url):
            parser.exit(1, f"{option} {url}: write http://HOST:PORT, with {{name}} or {{ordinal}} for the member's\n")
    try:
        passed = read_passed(parsed.set)
    except UserError as error:
        parser.exit(1, f"{error}\n")
    return MemberSettings(
        prefix=named[1],
        ordinal=ordinal,
        members=parsed.members,
        peer_url=parsed.peer_url,
        client_url=parsed.client_url,
        listen_peer_url=parsed.listen_peer_url or _everywhere(parsed.peer_url),
        listen_client_url=parsed.listen_client_url or _everywhere(parsed.client_url),
        token=parsed.token,
        data_dir=parsed.data_dir,
        output=parsed.output,
        timeout_s=parsed.timeout_s,
        passed=passed,
    )


def read_passed(items: Sequence[str]) -> dict[str, Any]:
    """`key=value` settings of etcd. A number, true, false or JSON's list stay what they are; all else is text. Raises
    `UserError`."""
    found: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"--set {item}: write key=value")
        first, *rest = key.split(".")
        if first in _OURS:
            raise UserError(f"--set {item}: {first} is decided for each member, and cannot be set")
        section = found
        for part, inner in zip([first, *rest], rest, strict=False):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise UserError(f"--set {item}: {part} has a value already, so it has no {inner}")
        section[[first, *rest][-1]] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_url(url: str) -> bool:
    filled = url.replace("{name}", "name-0").replace("{ordinal}", "0")
    try:
        parts = urlsplit(filled)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False


def _everywhere(url: str) -> str:
    parts = urlsplit(url.replace("{name}", "name-0").replace("{ordinal}", "0"))
    return f"{parts.scheme}://0.0.0.0:{parts.port}"
