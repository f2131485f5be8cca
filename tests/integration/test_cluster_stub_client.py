"""The client that docs/protocol.md shows, against a cluster of real processes, with nothing of ours but the stubs."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from running_cluster import HEAL_S, Deployment

from highwater import v1
from highwater.client import Consumer, Producer

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
LINE_BY_LINE = """
import sys
from client import Client

bootstrap, topic = sys.argv[1:]
client = Client(bootstrap)
for line in sys.stdin:
    print(client.produce(topic, 0, [(None, line.strip().encode())]), flush=True)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with the page's code as `client.py` and the generated stubs: Python finds that `highwater` first."""
    section = PAGE.read_text().partition("\n## A client of the stubs alone\n")[2]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    (tmp_path / "client.py").write_text(code)
    stubs = tmp_path / "highwater" / "v1"
    stubs.mkdir(parents=True)
    (stubs.parent / "__init__.py").touch()
    for stub in Path(v1.__path__[0]).glob("*.py"):
        shutil.copy(stub, stubs)
    return tmp_path


async def run(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=folder, env={"PYTHONPATH": str(folder)}, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def read(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    async with Consumer(topic, bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
        found: list[tuple[int, bytes | None, bytes | None]] = []
        while len(found) < count and (records := await consumer.poll(timeout_ms=10_000)):
            found += [(record.offset, record.key, record.value) for record in records]
        return found


async def test_the_client_of_the_page_produces_and_fetches(deployed: Deployment, elsewhere: Path) -> None:
    bootstrap = deployed.cluster.bootstrap.partition(",")[0]
    process = await run(elsewhere, "client.py", bootstrap, "by-hand")
    out, err = await asyncio.wait_for(process.communicate(), HEAL_S)
    assert (process.returncode, err.decode()) == (0, "")
    assert out.decode().splitlines() == ["0 b'ada' b'1'", "1 b'bob' b'2'", "2 None b'3'"]
    written = [(0, b"ada", b"1"), (1, b"bob", b"2"), (2, None, b"3")]
    assert await read(deployed.cluster.bootstrap, "by-hand", 3) == written


async def test_it_reads_what_the_sdk_writes_and_says_what_it_cannot_read(deployed: Deployment, elsewhere: Path) -> None:
    bootstrap = deployed.cluster.bootstrap.partition(",")[0]
    await deployed.create_topic("of-the-sdk", [[3, 2, 1], [2, 1, 3]])
    reading = "import sys, client; print([*client.Client(sys.argv[1]).fetch('of-the-sdk', int(sys.argv[2]), 1)])"
    for partition, compression in enumerate(("none", "lz4")):
        async with Producer(deployed.cluster.bootstrap, compression=compression) as producer:
            for value in (b"a", b"b", b"c"):
                headers = [("kind", b"test")]
                await producer.send_and_wait("of-the-sdk", value, partition=partition, headers=headers)
    process = await run(elsewhere, "-c", reading, bootstrap, "0")
    out, err = await asyncio.wait_for(process.communicate(), HEAL_S)
    assert (out.decode(), err.decode()) == ("[(1, None, b'b'), (2, None, b'c')]\n", "")
    process = await run(elsewhere, "-c", reading, bootstrap, "1")
    _, err = await asyncio.wait_for(process.communicate(), HEAL_S)
    assert err.decode().endswith("the batch at offset 1 is compressed, which this client does not read\n")


async def test_it_follows_the_leader_and_repeats_nothing(deployed: Deployment, elsewhere: Path) -> None:
    bootstrap = deployed.cluster.bootstrap.partition(",")[0]  # broker 1
    await deployed.create_topic("moving", [[2, 3, 1]])
    process = await run(elsewhere, "-c", LINE_BY_LINE, bootstrap, "moving")
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(200):
        process.stdin.write(b"%d\n" % number)
        if number == 50:
            deployed.cluster.kill_broker(2)
        async with asyncio.timeout(HEAL_S):
            assert await process.stdout.readline() == b"%d\n" % number
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), HEAL_S) == 0
    assert await read(deployed.cluster.bootstrap, "moving", 200) == [(n, None, b"%d" % n) for n in range(200)]
