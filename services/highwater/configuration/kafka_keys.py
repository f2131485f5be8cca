"""Kafka's settings that mean nothing here, and what there is in their place. Pure.

A service that is given one says so and goes on: a `server.properties` of Kafka's is no reason not to start.
"""

from __future__ import annotations

from collections.abc import Mapping

_THREADS = "each service is one event loop: start more brokers, or see queued.max.requests for what may wait"
_ETCD = "metadata is in etcd: use etcd"
_LISTENER = "use listeners and advertised.listeners"
_GROUPS = "groups are those of the consumer protocol: use group.consumer.session.timeout.ms and its siblings"
_SOCKETS = "gRPC's flow control sizes its buffers by itself"

MEANINGLESS_KEYS: Mapping[str, str] = {
    "advertised.host.name": _LISTENER,
    "advertised.port": _LISTENER,
    "background.threads": _THREADS,
    "broker.id.generation.enable": "every broker is given its broker.id",
    "broker.rack": "use rack",
    "control.plane.listener.name": "use inter.broker.listener.name",
    "controller.quorum.voters": _ETCD,
    "controller.quorum.bootstrap.servers": _ETCD,
    "delete.topic.enable": "topics can always be deleted",
    "group.initial.rebalance.delay.ms": _GROUPS,
    "group.max.session.timeout.ms": _GROUPS,
    "group.min.session.timeout.ms": _GROUPS,
    "host.name": _LISTENER,
    "inter.broker.protocol.version": "services of two versions understand one another: there is nothing to say",
    "log.flush.start.offset.checkpoint.interval.ms": "log starts are written with the recovery points: use "
    "log.flush.offset.checkpoint.interval.ms",
    "log.message.format.version": "there is one format, which has its version in each batch",
    "metadata.log.dir": _ETCD,
    "node.id": "use broker.id",
    "num.io.threads": _THREADS,
    "num.network.threads": _THREADS,
    "num.replica.alter.log.dirs.threads": "one move is under way at a time: use "
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "offsets.commit.required.acks": "commits are answered once they are committed",
    "offsets.commit.timeout.ms": "the client's deadline counts",
    "offsets.load.buffer.size": "log-storage's reads have the size of a segment's batches",
    "offsets.topic.compression.codec": "the offsets' records are written as they are",
    "port": _LISTENER,
    "process.roles": "each service is a process of its own: start those that are wanted",
    "replica.socket.receive.buffer.bytes": _SOCKETS,
    "security.inter.broker.protocol": "use inter.broker.listener.name",
    "socket.receive.buffer.bytes": _SOCKETS,
    "socket.send.buffer.bytes": _SOCKETS,
    "zookeeper.connect": _ETCD,
    "zookeeper.connection.timeout.ms": _ETCD,
    "zookeeper.max.in.flight.requests": _ETCD,
    "zookeeper.session.timeout.ms": "use broker.session.timeout.ms",
    "zookeeper.set.acl": _ETCD,
}
