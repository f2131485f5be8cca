"""The command line of the init container, and the file that it makes for etcd."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.errors import UserError
from highwater.kube.etcd_member.settings import MemberSettings, from_command_line, read_passed

GIVEN = {
    "--name": "hw-etcd-1",
    "--members": "3",
    "--peer-url": "http://{name}.hw-etcd.ns.svc:2380",
    "--client-url": "http://{name}.hw-etcd.ns.svc:2379",
    "--token": "ns/hw",
    "--data-dir": "/var/lib/etcd/data",
    "--output": "/config/etcd.yaml",
}


def settings(*extra: str, **changed: str) -> MemberSettings:
    given = GIVEN | {f"--{key.replace('_', '-')}": value for key, value in changed.items()}
    return from_command_line([*(f"{key}={value}" for key, value in given.items()), *extra])


def test_the_file_has_what_was_decided_and_what_was_passed() -> None:
    made = settings("--set=quota-backend-bytes=2147483648", "--set=auto-compaction-retention=1h")
    assert made.config("new", made.initial_cluster) == {
        "name": "hw-etcd-1",
        "data-dir": "/var/lib/etcd/data",
        "listen-peer-urls": "http://0.0.0.0:2380",
        "listen-client-urls": "http://0.0.0.0:2379",
        "initial-advertise-peer-urls": "http://hw-etcd-1.hw-etcd.ns.svc:2380",
        "advertise-client-urls": "http://hw-etcd-1.hw-etcd.ns.svc:2379",
        "initial-cluster": "hw-etcd-0=http://hw-etcd-0.hw-etcd.ns.svc:2380,"
        "hw-etcd-1=http://hw-etcd-1.hw-etcd.ns.svc:2380,hw-etcd-2=http://hw-etcd-2.hw-etcd.ns.svc:2380",
        "initial-cluster-state": "new",
        "initial-cluster-token": "ns/hw",
        "strict-reconfig-check": True,
        "quota-backend-bytes": 2147483648,
        "auto-compaction-retention": "1h",
    }
    assert made.others == [0, 2]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "etcd"}, "must end with a dash and the ordinal"),
        ({"name": "hw-etcd-3"}, "the last one is 2"),
        ({"peer_url": "http://etcd:2380"}, "with {name} or {ordinal}"),
        ({"client_url": "{name}:2379"}, "write http://HOST:PORT"),
    ],
)
def test_a_mistake_is_one_sentence(changed: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings(**changed)
    assert ended.value.code == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("items", "found"),
    [
        (
            ["a=1", "b=1h", "c=true", 'd=["stderr"]', "e=a=b"],
            {"a": 1, "b": "1h", "c": True, "d": ["stderr"], "e": "a=b"},
        ),
        (["t.cert-file=/a", "t.client-cert-auth=true"], {"t": {"cert-file": "/a", "client-cert-auth": True}}),
    ],
)
def test_values_are_passed_on_as_what_they_are(items: list[str], found: dict[str, Any]) -> None:
    assert read_passed(items) == found


@pytest.mark.parametrize(
    ("items", "said"),
    [(["a"], "write key=value"), (["initial-cluster=x"], "decided for each member"), (["a=1", "a.b=2"], "has no b")],
)
def test_what_cannot_be_passed_on_is_said(items: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_passed(items)


def test_peers_with_tls_need_their_files() -> None:
    made = settings(peer_url="https://{name}:2380")
    with pytest.raises(UserError, match=r"need --set peer-transport-security\.cert-file=FILE"):
        made.peer_tls()
