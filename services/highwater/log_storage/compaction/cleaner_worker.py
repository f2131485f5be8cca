"""The log-storage's end of a cleaner's process: started when there is work, one pass at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict

from highwater.log_storage.compaction.cleaner_job import Answer, CleanedGroup, CleanJob, PassLimits, answer_from_json

_LONGEST_LINE_BYTES = 64 << 20  # an answer names each segment of a group


class WorkerDiedError(Exception):
    """The process ended in the middle of a pass: it was killed, or had no memory left."""


class CleanerWorker:
    """Not to be used by two tasks at once, except `kill`."""

    def __init__(self, limits: PassLimits) -> None:
        self._limits = limits
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Has a process, which `kill` ends. Raises `OSError` where none can be started."""
        self._process = self._process or await self._start()

    async def run(self, job: CleanJob) -> AsyncIterator[Answer]:
        """The answers to a job: groups that are ready, then one that is not a group. Raises `WorkerDiedError`,
        `OSError` where no process can be started."""
        await self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job.to_json().encode() + b"\n")
            await process.stdin.drain()
            while line := await process.stdout.readline():
                answer = answer_from_json(line.decode())
                yield answer
                if not isinstance(answer, CleanedGroup):
                    return
        except (ConnectionError, ValueError) as error:
            await self.close()
            raise WorkerDiedError(f"the cleaner's process has gone wrong: {error}") from None
        await self.close()
        raise WorkerDiedError(f"the cleaner's process has ended with status {process.returncode}")

    async def _start(self) -> asyncio.subprocess.Process:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *_command(self._limits),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LONGEST_LINE_BYTES,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._process = await starting  # for `close` to end it
            raise

    def kill(self) -> None:
        """Stops a pass at once; `run` then raises `WorkerDiedError`."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        """Ends the process; it writes nothing any more when this returns. Once more where it was cancelled."""
        self.kill()
        if self._process is not None:
            await self._process.communicate()  # to the end of its pipes, so that nothing of them is left
            self._process = None


def _command(limits: PassLimits) -> list[str]:
    """The command that starts a process with these limits."""
    given = {name: value for name, value in asdict(limits).items() if value != float("inf")}
    return [sys.executable, "-m", "highwater.log_storage.compaction.cleaner_process", json.dumps(given)]
