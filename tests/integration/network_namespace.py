"""For tests: a network namespace at the end of a link that can be taken down. Where none can be made, the test is
skipped, with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Namespace:
    """`address` is its own, `outside` that of the test's end. Between both stands a router, so that a packet which does
    not arrive is not heard of at either end. `exec` is put before a command that is to run in it."""

    def __init__(self, number: int) -> None:
        self.name, self._router = f"highwater-{number}", f"highwater-{number}-router"
        net = f"10.213.{number}"
        self.outside, self.address = f"{net}.1", f"{net}.6"
        self._gateways = (f"{net}.2", f"{net}.5")
        self._far_net = f"{net}.4/30"
        self._link = f"hwt{number}"
        self.exec = ["ip", "netns", "exec", self.name]

    def up(self) -> None:
        self._forward("1")

    def down(self) -> None:
        """Nothing passes, silently."""
        self._forward("0")

    def forget_connections(self) -> None:
        """All that are open to the namespace, at the outer end alone where it is down: as where the kernel gave them
        up."""
        try:
            _run("ss", "--kill", "dst", self.address)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this kernel does not close other processes' connections: {error.stderr.strip()}")

    def make(self) -> None:
        router, far = self._router, self.name
        for name in (router, far):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "near", "netns", router)
        _run("ip", "-n", router, "link", "add", "far", "type", "veth", "peer", "name", "near", "netns", far)
        _run("ip", "address", "add", f"{self.outside}/30", "dev", self._link)
        _run("ip", "-n", router, "address", "add", f"{self._gateways[0]}/30", "dev", "near")
        _run("ip", "-n", router, "address", "add", f"{self._gateways[1]}/30", "dev", "far")
        _run("ip", "-n", far, "address", "add", f"{self.address}/30", "dev", "near")
        _run("ip", "link", "set", self._link, "up")
        for name, link in ((router, "near"), (router, "far"), (far, "near")):
            _run("ip", "-n", name, "link", "set", link, "up")
        _run("ip", "route", "add", self._far_net, "via", self._gateways[0])
        _run("ip", "-n", far, "route", "add", "default", "via", self._gateways[1])
        self.up()

    def remove(self) -> None:
        for command in (
            ["ip", "link", "delete", self._link],  # the route goes with it
            ["ip", "netns", "delete", self.name],
            ["ip", "netns", "delete", self._router],
        ):
            subprocess.run(command, check=False, capture_output=True)

    def _forward(self, on: str) -> None:
        _run("ip", "netns", "exec", self._router, "sh", "-c", f"echo {on} > /proc/sys/net/ipv4/ip_forward")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def network_namespace() -> Iterator[Namespace]:
    if shutil.which("ip") is None or shutil.which("ss") is None:
        pytest.skip("network namespaces need the programs `ip` and `ss` (package iproute2)")
    namespace = Namespace(1 + os.getpid() % 250)
    try:
        namespace.make()
    except subprocess.CalledProcessError as error:
        namespace.remove()
        pytest.skip(f"network namespaces cannot be made here (they need root): {error.stderr.strip()}")
    try:
        yield namespace
    finally:
        namespace.remove()
