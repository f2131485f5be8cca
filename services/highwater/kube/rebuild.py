"""`python -m highwater.kube.rebuild --inventories FILE… [--backup FILE] --etcd …`: makes a cluster's metadata again in
an etcd that has lost it, from the inventories of the brokers' volumes (`highwater.kube.inventory`) and, where there is
one, a backup. Controllers and brokers are stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from highwater.errors import UserError
from highwater.kube import etcd_arguments
from highwater.kube.lost_etcd import backup_file
from highwater.kube.lost_etcd.inventory import BrokerInventory, from_lines
from highwater.kube.lost_etcd.metadata import write_plan
from highwater.kube.lost_etcd.plan import Plan, cluster_id_of, plan
from highwater.metadata.schema.reading import CorruptMetadataError
from highwater.metadata.store.etcd_errors import StoreError

REFUSED = 3
"""The exit status where acknowledged records may be missing."""
_NAMED = 20


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    etcd_arguments.add_to(parser)
    parser.add_argument(
        "--inventories",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="-: standard input; a directory: the pieces of one inventory, 0, 1, and so on",
    )
    parser.add_argument("--backup", type=Path, help="a backup, or a directory of backups, of which it takes the newest")
    parser.add_argument("--brokers", default="", help="ids of all brokers there are, separated by commas")
    parser.add_argument(
        "--without-broker", type=int, action="append", default=[], metavar="ID", help="its volumes are gone for good"
    )
    parser.add_argument("--min-insync-replicas", type=int, default=1, help="what the brokers are set to")
    parser.add_argument(
        "--topic", action="append", default=[], metavar="NAME=ID", help="which of two topics of one name"
    )
    parser.add_argument("--accept-loss", action="store_true", help="go on where acknowledged records may be missing")
    parser.add_argument("--replace", action="store_true", help="remove what etcd holds of the cluster first")
    parser.add_argument("--dry-run", action="store_true", help="write nothing, print what would be written")
    parser.add_argument("--json", action="store_true", help="print the whole of it as a line of JSON")
    given = parser.parse_args(arguments)
    try:
        made = _plan(given)
        print(_as_json(made) if given.json else _report(made), flush=True)
        if (made.doubts or made.doubtful) and not given.accept_loss:
            print(_refusal(made), file=sys.stderr)
            return REFUSED
        if given.dry_run:
            return 0
        written = asyncio.run(_write(given, made))
    except (UserError, CorruptMetadataError, StoreError, OSError) as error:
        print(f"nothing is rebuilt: {error}", file=sys.stderr)
        return 1
    print("written" if written else "it stands in etcd already", file=sys.stderr if given.json else sys.stdout)
    return 0


def _plan(given: argparse.Namespace) -> Plan:
    """Raises `UserError`, `CorruptMetadataError`, `OSError`."""
    inventories: list[BrokerInventory] = []
    for path in given.inventories:
        inventories += from_lines(_text(path).splitlines())
    backup = None
    if given.backup is not None:
        in_directory = given.backup.is_dir()
        used = any(each.cluster_id for each in inventories)
        cluster_id = cluster_id_of(inventories) if used else None
        path = backup_file.latest(given.backup, cluster_id) if in_directory else given.backup
        backup = backup_file.read(path)
    try:
        brokers = [int(each) for each in given.brokers.split(",") if each]
        topic_ids = {
            name: bytes.fromhex(topic_id) for name, _, topic_id in (each.partition("=") for each in given.topic)
        }
    except ValueError as error:
        raise UserError(f"--brokers takes numbers, --topic takes NAME=ID with 32 hex digits: {error}") from error
    return plan(
        inventories,
        backup,
        brokers=brokers,
        without=given.without_broker,
        min_insync_replicas=given.min_insync_replicas,
        topic_ids=topic_ids,
    )


def _text(path: Path) -> str:
    """Raises `OSError`, and `UserError` for a directory without pieces."""
    if str(path) == "-":
        return sys.stdin.read()
    if not path.is_dir():
        return path.read_text()
    # Of the pieces of one inventory: a ConfigMap holds only so much. Kubernetes adds directories of its own.
    pieces = sorted((each for each in path.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name))
    if not pieces:
        raise UserError(f"{path} has no pieces of an inventory, named 0, 1, and so on")
    return "".join(each.read_text() for each in pieces)


async def _write(given: argparse.Namespace, made: Plan) -> bool:
    async with etcd_arguments.store_of(given) as store:
        return await write_plan(store, etcd_arguments.keys_of(given), made, replace=given.replace)


def _report(made: Plan) -> str:
    lines = [f"cluster {made.cluster_id}: {len(made.topics)} topics, {len(made.partitions)} partitions"]
    for topic in made.topics:
        leaders = Counter(each.leader_log for each in topic.partitions)
        told = ", ".join(
            f"{count} from broker {broker}" if broker is not None else f"{count} empty"
            for broker, count in sorted(leaders.items(), key=lambda item: (item[0] is None, item[0] or 0))
        )
        source = "backup and volumes" if topic.from_backup else "volumes"
        offsets = sum(each.log_end_offset for each in topic.partitions)
        lines.append(
            f"  {topic.assignment.topic}  {topic.assignment.topic_id.hex()}  {len(topic.partitions)} partitions "
            f"({told}), log ends {offsets} in all; by {source}; "
            f"configuration {'known' if topic.config_known else 'lost'}"
        )
    lines += (f"note: {note}" for note in made.notes)
    return "\n".join(lines)


def _refusal(made: Plan) -> str:
    doubtful, lines = made.doubtful, list(made.doubts)
    if doubtful:
        lines.append(f"{len(doubtful)} partitions may lack records that were acknowledged:")
    lines += (f"  {each.topic}-{each.partition}: {'; '.join(each.doubts)}" for each in doubtful[:_NAMED])
    if len(doubtful) > _NAMED:
        lines.append(f"  and {len(doubtful) - _NAMED} more (--json has all)")
    lines.append("Nothing is written. Bring what is missing, and take its inventory; or give --accept-loss")
    return "\n".join(lines)


def _as_json(made: Plan) -> str:
    return json.dumps(
        {
            "cluster_id": made.cluster_id,
            "controller_epoch": made.controller_epoch,
            "next_producer_id": made.next_producer_id,
            "doubts": made.doubts,
            "notes": made.notes,
            "topics": [
                {
                    "topic": topic.assignment.topic,
                    "topic_id": topic.assignment.topic_id.hex(),
                    "config": dict(topic.config),
                    "config_known": topic.config_known,
                    "from_backup": topic.from_backup,
                    "partitions": [
                        {
                            "partition": each.partition,
                            "replicas": each.replicas,
                            "leader_log": each.leader_log,
                            "log_end_offset": each.log_end_offset,
                            "leader_epoch": each.state.leader_epoch,
                            "isr": each.state.isr,
                            "doubts": each.doubts,
                        }
                        for each in topic.partitions
                    ],
                }
                for topic in made.topics
            ],
        }
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
