"""No task of asyncio is started by itself that nobody would miss: long-lived ones run under a `TaskSupervisor`
(`highwater.supervision`); the others, which whoever starts them awaits, stand here with the reason. Tasks of a
`TaskGroup` need none: the group awaits them, and fails with them. That is `highwater.supervision.TaskGroup`: asyncio's
goes on without a task that was cancelled by nobody (RULES 8.8)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import highwater

ROOT = Path(highwater.__file__).parent
GENERATED = "v1"

# Short-lived, and awaited by who starts them, or their outcome is looked at when they are done.
ALLOWED: dict[str, str] = {
    "client/blocking/event_loop_thread.py _Work.begin": "a thread waits for its outcome, or has given it up",
    "client/blocking/producer.py Producer._begin_hand_over": "flush awaits it; no record ends it",
    "client/cluster/cluster.py Cluster._ask_in_turn": "one call each; all are awaited, the first answer counts",
    "client/cluster/broker_connections.py BrokerConnections.follow": "close awaits it; it raises nothing",
    "client/cluster/connection.py RequestStream.__init__": "an error of either half fails the stream",
    "client/consumer/group_assignment.py GroupAssignment._settled": "the poll awaits it, or the next one; shielded",
    "client/groups/session_stream.py SessionStream.__init__": "its end is told, whatever it is; `leave` awaits it",
    "client/groups/session_stream.py SessionStream._run": "awaited where it is started; an error ends the stream",
    "client/producer/sender.py Sender._give_producer_id": "whatever it raises fails all that is outstanding",
    "controller/service.py ControllerService._serve_term": "the term waits for both, and gets the term's outcome",
    "rpc/bidirectional_stream.py drive_stream": "both halves are waited for, their errors end the stream",
    "kube/load.py Load.run": "what it raises is raised when the writers are done",
    "kube/etcd_member/membership.py Membership._first": "one call each; all are awaited, the first answer counts",
    "log_storage_client/append_socket.py AppendConnection.run": "waited for; where it ends, the stream does",
    "log_storage/compaction/cleaner_worker.py CleanerWorker._start": "awaited where it is started, shielded",
    "log_storage/process.py serve": "waits for the signal, and for the start, whose error ends the process",
    "log_storage/server/log_access.py LogAccess.wholly": "awaited where it is started, shielded",
    "log_storage/server/shared_write.py SharedWrite.written": "awaited by all who ask for it, shielded",
    "log_storage/service.py LogStorageService.stop": "awaited; where a disk never answers, the process ends without it",
    "metadata/store/connections.py Connections._in_background": "whatever it raises is logged; gRPC's own pings remain",
    "metadata/leases/controller_election.py ControllerElection._try_to_win": "`lost` waits for it and logs its error",
    "metadata/leases/registration.py BrokerRegistrar.register": "whatever it raises, the registration is lost",
    "metadata/leases/leased_key.py LeasedKey.hold": "both are waited for, the outcome of one is the key's",
    "replica_manager/process.py serve": "waits for the signal, and is waited for",
    "replica_manager/server/broker_servicer.py BrokerServicer.FetchStream": "of the call; its error ends the stream",
    "replica_manager/server/broker_servicer.py BrokerServicer.ProduceStream": "of the call; its error ends the stream",
    "replica_manager/server/group_servicer.py GroupServicer.Session": "of the call; its error ends the stream",
    "replica_manager/storage/fencer.py Fencer._flush": "one call; what it raises is logged, and a failure",
    "replica_manager/storage/shared_reads.py SharedReads.read": "awaited by all who ask for it, shielded",
    "rpc/connections/renewed_channel.py RenewedChannel._close_unused": "closes a former connection; `close` awaits it",
    "rpc/connections/renewed_channel.py RenewedChannel.channel_ready": "awaited where it is started",
    "rpc/connections/channel.py ReplaceableChannel.replace": "closes a channel that nobody uses; `close` awaits it",
    "replica_manager/membership/topic_creation.py TopicCreation._begin": "one call; those who want the topic await it",
}

# asyncio's groups.
ALLOWED_GROUPS: dict[str, str] = {
    "kube/load.py": "of a command that ends by itself, and tells what was not acknowledged",
    "log_storage/server/append_and_read.py": "as long as the call, which the peer ends where it is not answered",
}


def starts(file: str, source: str) -> Iterator[tuple[str, int]]:
    """Where a task is started: `file function`, and the line."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "asyncio"
        for alias in node.names
        if alias.name in ("create_task", "ensure_future")
    }

    def walk(node: ast.AST, inside: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inside = (*inside, node.name)
        if isinstance(node, ast.Call) and _starts_a_task(node.func, imported):
            yield f"{file} {'.'.join(inside)}", node.lineno
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    yield from walk(tree, ())


def _starts_a_task(function: ast.expr, imported: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in imported
    if not isinstance(function, ast.Attribute) or function.attr not in ("create_task", "ensure_future"):
        return False
    return function.attr == "ensure_future" or _is_a_loop(function.value)


def _is_a_loop(expression: ast.expr) -> bool:
    """`asyncio`, `loop`, `self._loop`, `asyncio.get_running_loop()`."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "asyncio" or name.endswith("loop")
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name.endswith("loop")
        case _:
            return False


def found() -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] != GENERATED and path.name != "supervision.py":
            for place, line in starts(str(path.relative_to(ROOT)), path.read_text()):
                places.setdefault(place, []).append(line)
    return places


def test_a_task_is_supervised_or_awaited_by_who_starts_it() -> None:
    unknown = {place: lines for place, lines in found().items() if place not in ALLOWED}
    assert not unknown, f"run these by highwater.supervision.TaskSupervisor: {unknown}"


def test_the_table_names_nothing_that_is_gone() -> None:
    gone = ALLOWED.keys() - found().keys()
    assert not gone, f"no task is started there any more, take it out of the table: {sorted(gone)}"


def test_a_group_fails_with_each_of_its_tasks() -> None:
    groups = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if "asyncio.TaskGroup()" in path.read_text()}
    assert groups == ALLOWED_GROUPS.keys(), "use highwater.supervision.TaskGroup"


def test_it_sees_a_task_that_is_started() -> None:
    source = """
import asyncio
from asyncio import create_task as begin
class Service:
    async def start(self, loop):
        asyncio.create_task(a())
        asyncio.ensure_future(a())
        begin(a())
        loop.create_task(a())
        self._loop.create_task(a())
        asyncio.get_running_loop().create_task(a())
        async with asyncio.TaskGroup() as group:
            group.create_task(a())
"""
    seen = list(starts("service.py", source))
    assert seen == [("service.py Service.start", line) for line in (6, 7, 8, 9, 10, 11)]
