"""A process that does nothing but look, as the services do, how late a timer is: what the machine itself costs. Answers
each line on stdin with the longest delay since the line before, in seconds."""

from __future__ import annotations

import asyncio
import sys

from highwater.telemetry.loop_delay import LoopDelay
from highwater.telemetry.metrics import Metrics


async def main() -> None:
    metrics = Metrics("reference")
    delay = LoopDelay(metrics)
    watching = asyncio.create_task(delay.watch())
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        print(metrics.registry.get_sample_value("highwater_reference_loop_longest_delay_seconds"), flush=True)
    watching.cancel()


if __name__ == "__main__":
    asyncio.run(main())
