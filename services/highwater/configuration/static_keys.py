"""The settings that services read at their start alone, under Kafka's names. Pure.

Each of a service's settings is here or in `dynamic_keys` (`tests/unit/configuration`).
"""

from __future__ import annotations

READ_ONLY_KEYS = frozenset(
    {
        # Where a process is, and whom it speaks to.
        *("advertised.listener", "advertised.listeners", "broker.id", "cluster", "controller.id", "etcd"),
        *("etcd.ca.file", "etcd.certificate.file", "etcd.key.file", "health.listen", "host.address"),
        *("inter.broker.listener.name", "listen", "listeners", "log.dirs", "log.storage", "metrics.listen", "rack"),
        "replica.manager",
        # What leases and sessions were granted with.
        *("broker.session.timeout.ms", "controller.session.timeout.ms", "replica.socket.timeout.ms"),
        # What servers and tasks were started with.
        *("connections.busy.calls.per.second", "connections.max.calls.per.second", "connections.max.idle.ms"),
        *("max.connections", "max.open.calls"),
        *("principals.max.calls.per.second", "principals.max.open.calls", "socket.request.max.bytes"),
        *("controlled.shutdown.max.wait.ms", "fetch.response.timeout.ms", "log.close.max.wait.ms"),
        *("log.cleaner.enable", "log.flush.offset.checkpoint.interval.ms", "log.flush.scheduler.interval.ms"),
        *("log.retention.check.interval.ms", "num.recovery.threads.per.data.dir", "ready.max.wait.ms"),
        "replica.high.watermark.checkpoint.interval.ms",
        # Of producers' ids in a log.
        *("max.producer.ids.per.log", "min.producer.id.eviction.ms", "producer.id.expiration.ms"),
        # Of groups, and the topic of their offsets.
        *("group.consumer.heartbeat.interval.ms", "group.consumer.max.size", "group.consumer.session.timeout.ms"),
        *("offset.metadata.max.bytes", "offsets.retention.check.interval.ms", "offsets.retention.minutes"),
        *("offsets.topic.num.partitions", "offsets.topic.replication.factor", "offsets.topic.segment.bytes"),
        # Of TLS, and who is let in.
        *("allow.everyone.if.no.acl.found", "authorizer.class.name", "broker.principal", "controller.principals"),
        *("listener.security.protocol.map", "ssl.ca.file", "ssl.certificate.file", "ssl.client.auth", "ssl.key.file"),
        *("ssl.principal.mapping.rules", "super.users", "tokens.allow.plaintext", "tokens.file"),
        *("sasl.oauthbearer.clock.skew.seconds", "sasl.oauthbearer.expected.audience"),
        *("sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.jwks.endpoint.refresh.ms"),
        *("sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.sub.claim.name"),
        # Of metrics, traces and the log's form.
        *("csv.metrics.dir", "csv.metrics.reporter.enabled", "log.format", "metrics.partitions", "metrics.topics"),
        *("metrics.polling.interval.secs", "metrics.reporter.interval.ms", "metrics.reporters"),
        *("otlp.endpoint", "otlp.headers", "tracing.enabled"),
        # Other spellings of what is dynamic under its first name.
        *("flush.messages", "log.retention.hours", "log.retention.minutes"),
    }
)

# What to change instead, where there is such a thing.
INSTEAD = {
    "flush.messages": "log.flush.interval.messages",
    "log.retention.hours": "log.retention.ms",
    "log.retention.minutes": "log.retention.ms",
}
