"""For tests: a network namespace at the end of a link that can be taken down. Where none can be made, the test is
skipped, with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest


class Namespace:
    """`address` is its own, `outside` that of the other end of its link. `exec` is put before a command that is to run
    in it."""

    def __init__(self, number: int) -> None:
        self.name = f"highwater-test-{number}"
        self.outside, self.address = f"10.213.{number}.1", f"10.213.{number}.2"
        self.exec = ["ip", "netns", "exec", self.name]
        self._link = f"hwt{number}"

    def up(self) -> None:
        _ip("link", "set", self._link, "up")

    def down(self) -> None:
        _ip("link", "set", self._link, "down")

    def make(self) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "outside", "netns", self.name)
        _ip("address", "add", f"{self.outside}/30", "dev", self._link)
        _ip("-n", self.name, "address", "add", f"{self.address}/30", "dev", "outside")
        _ip("-n", self.name, "link", "set", "outside", "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        self.up()

    def remove(self) -> None:
        subprocess.run(["ip", "link", "delete", self._link], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    command: Sequence[str] = ["ip", *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def network_namespace() -> Iterator[Namespace]:
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the program `ip` (package iproute2)")
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
