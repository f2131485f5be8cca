"""What can go wrong with the disks of one broker. Its log-storage runs under `log_storage_launcher`."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from random import Random

from soak.log_storage_launcher import File, file_of, read_synced, unsynced


class BrokerDisks:
    def __init__(self, control: Path, directories: list[Path]) -> None:
        self.control = control
        self.directories = directories
        control.mkdir(parents=True)
        self._new_boot()

    def _new_boot(self) -> None:
        (self.control / "boot_id").write_text(f"{uuid.uuid4()}\n")

    def fail(
        self,
        directory: Path,
        operations: Iterable[str],
        *,
        number: int = errno.EIO,
        after: int = 0,
        drop: bool = False,
    ) -> None:
        """From now on these operations end with that error; `after` so many more."""
        self._say({str(directory): {"operations": dict.fromkeys(operations, number), "after": after, "drop": drop}})

    def mend(self) -> None:
        self._say({})

    def _say(self, faults: dict[str, object]) -> None:
        temporary = self.control / "faults.tmp"
        temporary.write_text(json.dumps(faults))
        temporary.replace(self.control / "faults.json")

    def forget_dropped(self) -> None:
        """The inodes of files that lost dirty pages are forgotten by the kernel as well: each file ends where it was
        synced last, as if nothing more had ever been in it. No process may run."""
        told = self.control / "dropped"
        if not told.exists():
            return
        begins: dict[File, int] = {}
        for line in told.read_text().splitlines():
            device, inode, begin = map(int, line.split())
            begins[device, inode] = begin
        for directory in self.directories:
            for path in filter(Path.is_file, directory.rglob("*")):
                end = begins.get(file_of(path.stat()))
                if end is not None and path.stat().st_size > end:
                    os.truncate(path, end)
        told.unlink()

    def dropped(self) -> bool:
        """Whether dirty pages were lost since the last time."""
        told = self.control / "dropped"
        if not told.exists():
            return False
        told.unlink()
        return True

    def lose_power(self, random: Random) -> int:
        """What was not synced is lost, all of it or from some point on, cut off or zeros; the next boot is another.
        No process may run. The bytes that were lost."""
        sizes = read_synced(self.control / "synced")
        lost = 0
        for directory in self.directories:
            for path, begin, end in unsynced(directory, lambda file: sizes.get(file, 0)):
                kept = random.choice((begin, begin, random.randint(begin, end)))
                os.truncate(path, kept)
                if random.random() < 0.5:
                    os.truncate(path, end)
                lost += end - kept
        self._new_boot()
        return lost
