"""A process may fork beside its clients. `forking_process.py` does it hundreds of times where it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FORKING = Path(__file__).with_name("forking_process.py")
SWITCH = "GRPC_ENABLE_FORK_SUPPORT"
# The address is nobody's: gRPC runs all the same.
FORKS_BESIDE_GRPC = """
import asyncio, subprocess, warnings
{imports}
async def main():
    async with grpc.aio.insecure_channel("127.0.0.1:1"):
        for _ in range(2):
            subprocess.run(["true"], preexec_fn=lambda: None)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    asyncio.run(main())
print([str(warning.message) for warning in caught if warning.category is RuntimeWarning])
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != SWITCH}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**inherited, **environment},
    )


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        ("programs", 200),
        ("bystanders", 16),
        ("droppers", 8),
        ("beside-open", 8),
        ("without-clients", 4),
        ("after-stopped", 6),
        ("pools", 2),
    ],
)
@pytest.mark.timeout(300)
def test_no_child_is_lost(kind: str, rounds: int) -> None:
    done = run(str(FORKING), kind, str(rounds))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{kind}: {rounds} rounds, nothing lost\n"


@pytest.mark.parametrize("imports", ["import highwater, grpc.aio", "import highwater.client.blocking; import grpc.aio"])
def test_grpc_is_told_before_it_is_imported(imports: str) -> None:
    done = run("-c", FORKS_BESIDE_GRPC.format(imports=imports))
    assert done.stdout == "[]\n", done.stderr
    assert "fork" not in done.stderr


def test_a_late_import_is_said_at_the_fork_once() -> None:
    done = run("-c", FORKS_BESIDE_GRPC.format(imports="import grpc.aio; import highwater"))
    assert done.stdout.count("this process forks while gRPC runs") == 1, done.stderr
    assert "import highwater before grpc, or set GRPC_ENABLE_FORK_SUPPORT=false in the environment" in done.stdout
    told = run("-c", FORKS_BESIDE_GRPC.format(imports="import grpc.aio; import highwater"), **{SWITCH: "false"})
    assert told.stdout == "[]\n", told.stderr


def test_what_the_user_says_of_handlers_is_kept_and_named_at_the_fork() -> None:
    done = run("-c", FORKS_BESIDE_GRPC.format(imports="import highwater, grpc.aio"), **{SWITCH: "true"})
    assert done.stdout.count("this process forks while gRPC runs") == 1, done.stderr


def test_somebody_elses_grpc_is_seen() -> None:
    script = """
import os, sys, highwater, grpc
channel = grpc.insecure_channel("127.0.0.1:1")
channel.subscribe(lambda state: None, try_to_connect=True)
child = os.fork()
if not child:
    from highwater.client import ClientClosedError
    from highwater.client.blocking import Producer
    try:
        Producer("127.0.0.1:1").start()
    except ClientClosedError as error:
        os.write(1, str(error).encode())
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""
    assert "make the first client after the fork" in run("-c", script).stdout
