"""A backup of a cluster's metadata: every key that no lease holds, as it stood at one revision of etcd.

Lines of JSON, compressed with gzip: a head (format, cluster, cluster id, revision, time), a line for each key, and the
SHA-256 of all lines before it. The values are what etcd had, so any version that reads those reads a backup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from highwater.atomic_file import fsync_directory, replace_file
from highwater.errors import UserError
from highwater.model.written_json import checked, parse_json

FORMAT = "highwater-metadata-backup"
VERSION = 1
SUFFIX = ".backup.gz"
_NAME = re.compile(r"(?P<cluster>.+)-(?P<id>[0-9a-f]{8})-(?P<time>\d{8}T\d{6}Z)-r(?P<revision>\d+)\.backup\.gz")


@dataclass(frozen=True)
class Backup:
    """`entries`: values by key, the keys without the cluster's prefix, from the slash on."""

    cluster: str
    cluster_id: str
    revision: int
    taken_ms: int  # since the epoch
    entries: dict[str, bytes]

    @property
    def file_name(self) -> str:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.taken_ms / 1000))
        return f"{self.cluster}-{_short(self.cluster_id)}-{stamp}-r{self.revision}{SUFFIX}"

    @property
    def taken(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.taken_ms / 1000))

    def to_bytes(self) -> bytes:
        head = {
            "format": FORMAT,
            "version": VERSION,
            "cluster": self.cluster,
            "cluster_id": self.cluster_id,
            "revision": self.revision,
            "taken_ms": self.taken_ms,
            "keys": len(self.entries),
        }
        lines = [_line(head)]
        lines += (
            _line({"key": key, "value": base64.b64encode(value).decode()})
            for key, value in sorted(self.entries.items())
        )
        body = b"".join(lines)
        return gzip.compress(body + _line({"sha256": hashlib.sha256(body).hexdigest()}), mtime=0)


def read(path: Path) -> Backup:
    """Raises `UserError`: it is none, or is damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the backup {path}: {error.strerror or error}") from error
    return parse(content, f"the backup {path}")


def parse(content: bytes, what: str) -> Backup:
    """`what` it is, for the message. Raises `UserError`."""
    try:
        return _parse(gzip.decompress(content))
    except (ValueError, KeyError, TypeError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{what} is damaged, or is no backup ({error}): take another one") from error


def _parse(body: bytes) -> Backup:
    """Raises `ValueError`, `KeyError`, `TypeError`."""
    lines = body.splitlines(keepends=True)
    if len(lines) < 2 or parse_json(lines[-1])["sha256"] != hashlib.sha256(b"".join(lines[:-1])).hexdigest():
        raise ValueError("its checksum is wrong")
    head = parse_json(lines[0])
    if (head["format"], head["version"]) != (FORMAT, VERSION):
        raise ValueError(f"format {head['format']}, version {head['version']}")
    entries = {each["key"]: base64.b64decode(each["value"]) for each in map(parse_json, lines[1:-1])}
    if len(entries) != head["keys"]:
        raise ValueError(f"{len(entries)} keys and not {head['keys']}")
    return checked(Backup(head["cluster"], head["cluster_id"], head["revision"], head["taken_ms"], entries))


def write(backup: Backup, directory: Path) -> Path:
    """Durable when it returns, and never there in part. Raises `OSError`."""
    path = directory / backup.file_name
    replace_file(path, backup.to_bytes())
    return path


def rotate(backup: Backup, directory: Path, keep: int) -> list[Path]:
    """Removes the oldest of this cluster's backups but for `keep`; those that went. `backup` itself stays: a clock that
    was ahead has made others that seem newer. Backups of another cluster id stay too: an etcd that has lost everything
    begins a cluster anew, and must not take the backups with it. Raises `OSError`."""
    mine = sorted(
        (found["time"], int(found["revision"]), name)
        for name in os.listdir(directory)
        if (found := _NAME.fullmatch(name)) is not None
        and (found["cluster"], found["id"]) == (backup.cluster, _short(backup.cluster_id))
    )
    gone = [directory / name for _, _, name in mine[:-keep] if name != backup.file_name]
    for path in gone:
        path.unlink(missing_ok=True)
    if gone:
        fsync_directory(directory)
    return gone


def latest(directory: Path, cluster_id: str | None) -> Path:
    """The newest backup of that cluster in the directory; None: of the only one that there is. Raises `UserError` where
    there is none, or are several clusters."""
    named = [match for name in os.listdir(directory) if (match := _NAME.fullmatch(name)) is not None]
    wanted = {match["id"] for match in named} if cluster_id is None else {_short(cluster_id)}
    if len(wanted) > 1:
        newest = ", ".join(max((each["time"], each[0]) for each in named if each["id"] == one)[1] for one in wanted)
        raise UserError(
            f"{directory} has backups of several clusters, and no volume says which one this is: name one of {newest}"
        )
    found = [(match["time"], int(match["revision"]), match[0]) for match in named if match["id"] in wanted]
    if not found:
        of = "" if cluster_id is None else f" of cluster {cluster_id}"
        raise UserError(f"there is no backup{of} in {directory}: its name would end in {SUFFIX}")
    return directory / max(found)[2]


def _short(cluster_id: str) -> str:
    return hashlib.sha256(cluster_id.encode()).hexdigest()[:8]


def _line(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode() + b"\n"
