"""A member of a group, in a process of its own: says how many records it has read, and reads on."""

from __future__ import annotations

import asyncio
import sys

from highwater.client import Consumer


async def main(bootstrap: str, topic: str, group: str) -> None:
    seen = 0
    async with Consumer(topic, bootstrap=bootstrap, group=group, auto_offset_reset="earliest") as consumer:
        while True:
            if records := await consumer.poll(200):
                seen += len(records)
                print(seen, flush=True) if seen % 80 == 0 else None


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
