"""Quotas, throttles and settings that an operator sets and removes while everything runs, and what is to count in the
end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from pathlib import Path

from replica_manager_cluster import eventually

from highwater.client import Admin, ConfigResource, HighwaterError
from highwater.client.admin.configs import ConfigResourceType, ConfigSource
from soak.cluster import BROKERS
from soak.operating.principals import AUDITOR, CAROL, MAKER, WRITERS
from soak.operating.state import Operating
from soak.state import COMPACTED, NUMBERED

HIGHWATER = str(Path(sys.executable).with_name("highwater"))
_DAY_MS = "86400000"
_SET = {ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER, ConfigSource.CLUSTER}
_SET |= {ConfigSource.DYNAMIC_CLIENT, ConfigSource.DYNAMIC_USER}

# Values for each key; every key is unset now and then, too. Quotas are less than would be written, and leave what is
# sent at once far from its deadline; throttles are more than is written, so that who is behind catches up.
_RATES = ("5000", "40000", "1000000")
_QUOTAS = {
    "producer_byte_rate": _RATES,
    "consumer_byte_rate": ("300000", "3000000"),
    "request_percentage": ("100", "400"),
}
_THROTTLES = {
    "leader.replication.throttled.rate": ("1500000", "6000000"),
    "follower.replication.throttled.rate": ("1500000", "6000000"),
}
_BROKER = {
    "log.level": ("DEBUG", "WARNING", "INFO"),
    "num.replica.fetchers": ("1", "2", "4"),
    "replica.fetch.wait.max.ms": ("100", "300"),
    "replica.fetch.max.bytes": ("100000", "1048576"),
    "replica.fetch.backoff.ms": ("100", "1000"),
    "replica.lag.time.max.ms": ("2000", "6000"),
    "fetch.max.bytes": ("1000000", "50000000"),
    "queued.max.requests": ("100", "500"),
    "tail.cache.bytes": ("0", "1000000"),
    "log.segment.bytes": ("300000", "3000000"),
    "log.retention.ms": ("-1", _DAY_MS),
    "log.flush.interval.messages": ("1", "100"),
    "log.cleaner.threads": ("1", "2"),
    "log.cleaner.backoff.ms": ("500", "2000"),
    "log.scrub.interval.ms": ("5000", "60000"),
    "file.delete.delay.ms": ("0", "10000"),
}
_TOPIC = {
    "min.insync.replicas": ("1", "2"),
    "retention.ms": ("-1", _DAY_MS),
    "retention.bytes": ("-1", "1000000000000"),
    "segment.bytes": ("200000", "2000000"),
    "segment.ms": ("10000", _DAY_MS),
    "flush.messages": ("1", "100"),
    "max.message.bytes": ("1048576", "4194304"),
    "index.interval.bytes": ("512", "8192"),
    "leader.replication.throttled.replicas": ("*", "0:1,1:2,2:3"),
    "follower.replication.throttled.replicas": ("*", "0:2,3:1"),
}
_COMPACTED = {
    "min.cleanable.dirty.ratio": ("0.05", "0.6"),
    "max.compaction.lag.ms": ("3000", _DAY_MS),
    "delete.retention.ms": ("0", _DAY_MS),
    "segment.ms": ("10000", _DAY_MS),
}
_CLUSTER = {
    "min.insync.replicas": ("1", "2"),
    "auto.leader.rebalance.enable": ("true", "false"),
    "leader.imbalance.check.interval.seconds": ("3", "20"),
    "message.max.bytes": ("1048576", "8388608"),
    "num.partitions": ("1", "7"),
}
_USERS = [user.user for user in (*WRITERS, AUDITOR, CAROL)]
_TABLE: list[tuple[str, list[ConfigResource], dict[str, tuple[str, ...]]]] = [
    ("quota", [ConfigResource.user(name) for name in _USERS], _QUOTAS),
    ("quota", [ConfigResource.user(), ConfigResource.client()], {"request_percentage": ("200", "400")}),
    ("quota", [ConfigResource.user_client(WRITERS[0].user, "soak-writer-0")], {"producer_byte_rate": _RATES}),
    ("quota", [ConfigResource.user(MAKER.user)], {"controller_mutation_rate": ("2", "20")}),
    ("throttle", [ConfigResource.broker(), *map(ConfigResource.broker, range(1, BROKERS + 1))], _THROTTLES),
    ("broker config", [ConfigResource.broker(), *map(ConfigResource.broker, range(1, BROKERS + 1))], _BROKER),
    ("topic config", [ConfigResource.topic(NUMBERED)], _TOPIC),
    ("topic config", [ConfigResource.topic(COMPACTED)], _COMPACTED),
    ("cluster config", [ConfigResource.cluster()], _CLUSTER),
]
_WEIGHTS = (6, 1, 1, 1, 4, 6, 6, 2, 3)


class Configurations:
    def __init__(self, operating: Operating, before: dict[ConfigResource, dict[str, str]]) -> None:
        """`before`: what topics were made with."""
        self._operating = operating
        self._soak = operating.soak
        self._wanted: dict[ConfigResource, dict[str, str]] = defaultdict(dict, before)

    async def run(self) -> None:
        random = self._soak.random("configurations")
        async with Admin(self._soak.bootstrap) as admin:
            while not self._soak.stopped.is_set():
                (kind, resources, keys) = random.choices(_TABLE, _WEIGHTS)[0]
                resource, key = random.choice(resources), random.choice(list(keys))
                value = random.choice((*keys[key], None))
                by_command = random.random() < 0.1
                await self._alter(admin, kind, resource, key, value, by_command)
                await self._soak.pause(random.uniform(0.1, 1.5))

    async def _alter(
        self, admin: Admin, kind: str, resource: ConfigResource, key: str, value: str | None, by_command: bool
    ) -> None:
        text = f"{key}={value}" if value is not None else f"{key} unset"
        name = " ".join(filter(None, (resource.name or "default", resource.client_id)))
        self._operating.act(kind, f"{resource.type.name.lower()} {name} {text}")
        wanted = self._wanted[resource]
        if value is None:
            wanted.pop(key, None)
        else:
            wanted[key] = value

        async def attempt() -> None:
            if by_command:
                await self._by_command(resource, key, value)
            elif value is None:
                await admin.alter_configs(resource, {}, [key])
            else:
                await admin.alter_configs(resource, {key: value})

        await self._operating.insist(f"alter {name} {text}", attempt)

    async def _by_command(self, resource: ConfigResource, key: str, value: str | None) -> None:
        words = ["unset", key] if value is None else ["set", f"{key}={value}"]
        process = await asyncio.create_subprocess_exec(
            *(HIGHWATER, "configs", *words, *_options(resource)),
            env={**os.environ, "HIGHWATER_BOOTSTRAP": self._soak.bootstrap},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        self._operating.acts["by the command line"] += 1
        if process.returncode:
            raise HighwaterError(f"highwater configs: {output.decode().strip()[-200:]}")

    async def check(self, admin: Admin) -> None:
        """All that was set last counts, and nothing else."""
        resources = {*self._wanted, *(resource for _, each, _ in _TABLE for resource in each)}
        for resource in resources:
            expected = self._expected(resource)
            found: dict[str, str | None] = {}

            async def as_set(
                resource: ConfigResource = resource,
                expected: dict[str, str] = expected,
                found: dict[str, str | None] = found,
            ) -> bool:
                is_topic = resource.type is ConfigResourceType.TOPIC
                sources = {ConfigSource.DYNAMIC_TOPIC} if is_topic else _SET
                entries = [each for each in await admin.describe_configs(resource) if each.source in sources]
                found.clear()
                found.update({each.key: each.value for each in entries})
                return found == expected and not any(each.service for each in entries)

            try:
                await eventually(as_set, "", 10)
            except AssertionError:
                self._soak.problem(f"{resource.type.name} {resource.name} has {found}, was set to {expected}")
        for resource_type in (ConfigResourceType.USER, ConfigResourceType.CLIENT, ConfigResourceType.USER_CLIENT):
            for resource in await admin.list_configs(resource_type):
                if resource not in resources:
                    self._soak.problem(f"{resource} has a configuration that nobody set")

    def _expected(self, resource: ConfigResource) -> dict[str, str]:
        wanted = self._wanted[resource]
        if resource.type is ConfigResourceType.BROKER and resource.name:
            wanted = {**self._wanted[ConfigResource.cluster()], **self._wanted[ConfigResource.broker()], **wanted}
        return wanted


def _options(resource: ConfigResource) -> list[str]:
    if resource.type is ConfigResourceType.CLUSTER:
        return ["--cluster"]
    if resource.type is ConfigResourceType.USER_CLIENT:
        return ["--user", resource.name, "--client", resource.client_id]
    kind = resource.type.name.lower()
    if resource.name:
        return [f"--{kind}", resource.name]
    return ["--broker-defaults" if kind == "broker" else f"--{kind}-defaults"]
