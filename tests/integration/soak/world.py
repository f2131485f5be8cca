"""A little world of machines on this one: network namespaces on a bridge, links that are cut, packets that are lost.

The whole soak moves into a network and a mount namespace of its own first, so that nothing of the world is left when
its processes have ended, however they ended: no namespace, no bridge, no mount.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

INSIDE = "HIGHWATER_SOAK_WORLD"
CLIENTS = "clients"  # the machine that the bridge is on, and the soak
_BRIDGE = "soak"
_NOWHERE = "02:00:00:00:00:ff"  # nobody's Ethernet address
_TRIAL = "mount -t tmpfs none /run && ip link add name trial type bridge && ip netns add trial"


def enter() -> str:
    """Starts this program once more in namespaces of its own and does not return; inside of them, and where there can
    be none, it does. Why there is no network to part; empty: there is one."""
    if INSIDE in os.environ:
        return ""
    missing = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} missing (apt-get install iproute2 util-linux)"
    unshare = ["unshare", *(["--map-root-user"] if os.geteuid() else []), "--net", "--mount"]
    trial = subprocess.run([*unshare, "sh", "-c", _TRIAL], capture_output=True, text=True, check=False)
    if trial.returncode:
        return f"network namespaces are not permitted ({trial.stderr.strip().splitlines()[-1]})"
    sys.stdout.flush()
    os.execvpe("unshare", [*unshare, sys.executable, *sys.orig_argv[1:]], {**os.environ, INSIDE: "1"})


class Network:
    """Machines by name. `10.77.0.1` is the clients'."""

    def __init__(self) -> None:
        self._addresses = {CLIENTS: "10.77.0.1"}
        self._lost: Counter[tuple[str, str]] = Counter()  # by how many faults
        _run("mount", "-t", "tmpfs", "none", "/run")
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "name", _BRIDGE, "type", "bridge")
        _ip("address", "add", f"{self._addresses[CLIENTS]}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")

    @property
    def machines(self) -> Sequence[str]:
        return list(self._addresses)

    def address(self, machine: str) -> str:
        """Makes the machine where it is not there yet."""
        if machine not in self._addresses:
            self._add(machine)
        return self._addresses[machine]

    def _add(self, machine: str) -> None:
        number = len(self._addresses) + 1
        self._addresses[machine] = f"10.77.0.{number}"
        _ip("netns", "add", machine)
        _ip("link", "add", "name", _link(machine), "type", "veth", "peer", "name", "eth0", "netns", machine)
        _ip("link", "set", _link(machine), "master", _BRIDGE, "up")
        _ip("-netns", machine, "link", "set", "lo", "up")
        _ip("-netns", machine, "address", "add", f"{self._addresses[machine]}/24", "dev", "eth0")
        _ip("-netns", machine, "link", "set", "eth0", "up")

    def inside(self, machine: str, command: Sequence[str]) -> list[str]:
        """The command line that runs it on that machine."""
        self.address(machine)
        return ["nsenter", f"--net=/run/netns/{machine}", *command]

    def pull(self, machine: str) -> None:
        """Its cable: nothing comes or goes."""
        _ip("link", "set", _link(machine), "down")

    def plug(self, machine: str) -> None:
        _ip("link", "set", _link(machine), "up")

    def lose(self, source: str, target: str) -> None:
        """What `source` sends to `target` is lost, without a word; the other direction is not touched."""
        self._lost[source, target] += 1
        self._neighbour(source, "replace", self._addresses[target], "lladdr", _NOWHERE, "nud", "permanent")

    def pass_on(self, source: str, target: str) -> None:
        self._lost[source, target] -= 1
        if not self._lost[source, target]:
            self._neighbour(source, "delete", self._addresses[target])

    def _neighbour(self, source: str, what: str, address: str, *rest: str) -> None:
        where = [] if source == CLIENTS else ["-netns", source]
        _ip(*where, "neighbour", what, address, "dev", _BRIDGE if source == CLIENTS else "eth0", *rest)


def _link(machine: str) -> str:
    return f"to-{machine}"  # at most 15 characters


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
