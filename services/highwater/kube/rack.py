"""`python -m highwater.kube.rack --node NAME --out FILE`: writes `rack=ZONE` of the node that a pod runs on.

An init container of brokers runs it: the zone is a label of the node, which a pod's own fields do not have.
"""

from __future__ import annotations

import argparse
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ZONE = "topology.kubernetes.io/zone"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVER = "https://kubernetes.default.svc"
_TIMEOUT_S = 10.0


class NodeUnknownError(Exception):
    """The node could not be read."""


def node_labels(server: str, account: Path, node: str) -> Mapping[str, str]:
    """Raises `NodeUnknownError`."""
    try:
        token = (account / "token").read_text()
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        request = urllib.request.Request(f"{server}/api/v1/nodes/{node}", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as response:
            found: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        raise NodeUnknownError(f"node {node} cannot be read: {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        raise NodeUnknownError(f"node {node} cannot be read: {error}") from None
    return dict(found.get("metadata", {}).get("labels") or {})


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        zone = node_labels(SERVER, ACCOUNT, given.node).get(ZONE, "")
    except NodeUnknownError as error:
        print(error, file=sys.stderr)
        return 1
    given.out.write_text(f"rack={zone}\n")
    print(f"rack {zone}" if zone else f"node {given.node} has no label {ZONE}: no rack")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
