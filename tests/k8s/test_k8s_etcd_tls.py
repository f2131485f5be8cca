"""The chart's own etcd with TLS, which nobody gets into without a certificate: it starts, is replaced, is backed up."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import trustme
from kubernetes_cluster import CommandError, Release, RunningLoad, highwater, until

_ASK = """
import grpc, sys
from aetcd import rpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    rpc.MaintenanceStub(channel).Status(rpc.StatusRequest(), timeout=5)
"""


def secret(release: Release, name: str, authority: trustme.CA, issued: trustme.LeafCert) -> None:
    contents = {
        "ca.crt": authority.cert_pem.bytes(),
        "tls.crt": issued.cert_chain_pems[0].bytes(),
        "tls.key": issued.private_key_pem.bytes(),
    }
    data = {key: base64.b64encode(value).decode() for key, value in contents.items()}
    manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
    release.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def test_etcd_speaks_tls_to_who_has_a_certificate(
    release: Release, values: dict[str, Any], image: str, tmp_path: Path
) -> None:
    release.kubectl("create", "namespace", release.namespace)
    authority = trustme.CA()
    domain = f"{release.name}-etcd.{release.namespace}.svc.cluster.local"
    members = [f"{release.pod('etcd', ordinal)}.{domain}" for ordinal in range(3)]
    secret(release, "members", authority, authority.issue_cert(*members, "localhost"))
    secret(release, "client", authority, authority.issue_cert("highwater@example.com", common_name="highwater"))
    tls = {"secretName": "client", "memberSecretName": "members"}
    release.install({**values, "etcd": {**values["etcd"], "tls": tls}, "backup": {"enabled": True}})
    print(release.helm("test", release.name))
    with pytest.raises(CommandError, match="UNAVAILABLE"):
        release.execute(release.pod("broker", 0), "python", "-c", _ASK, f"{members[0]}:2379")

    load = RunningLoad.start(release, image, seconds=300)
    load.wait_until_it_writes()
    pod = release.pod("etcd", 1)
    release.kubectl("delete", "pvc", f"data-{pod}", "--wait=false")
    before = release.installed.pod(pod)
    assert before is not None
    release.installed.delete_pod(pod, grace_s=0)

    def is_back() -> bool:
        now = release.installed.pod(pod)
        return now is not None and now.uid != before.uid and release.installed.is_ready(pod)

    until(is_back, f"{pod} is ready on an empty volume", 120)
    release.kubectl("rollout", "restart", f"statefulset/{release.name}-etcd")
    release.kubectl("rollout", "status", f"statefulset/{release.name}-etcd", "--timeout=200s", timeout_s=210)
    load.stop()
    print(load.finish(120))

    assert "of " in highwater(release, "kube", "backup", "--out", str(tmp_path))
    assert list(tmp_path.glob("highwater-*.gz"))
    release.kubectl("create", "job", f"--from=cronjob/{release.name}-backup", "now")
    release.kubectl("wait", "--for=condition=complete", "job/now", "--timeout=90s")
    said = highwater(release, "kube", "status")
    assert "nothing is wrong" in said, said
