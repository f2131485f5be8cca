"""`mirror`: topics of one cluster into another, with keys, headers, timestamps and partitions as they are.

Each record arrives once, also where the job or one of its tasks is killed and run again: before a micro-batch is
written, the target's ends are logged in the checkpoint, and a task that finds records behind these passes over those
of its own that are there already. (Spark's speculation runs a task twice at the same time: it is turned off.)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from highwater.client import TopicPartition
from highwater.client.admin.descriptions import TopicDescription
from highwater.client.blocking import Admin
from highwater.client.cluster.bootstrap import bootstrap_addresses
from highwater.client.exceptions import TopicAlreadyExistsError
from highwater.errors import UserError
from highwater.spark.offsets.topic_offsets import TopicOffsets
from highwater.spark.options.client_settings import client_settings
from highwater.spark.options.data_source_options import Subscription, lower_case, parse_read_options
from highwater.spark.pipelines.command.pipeline_command import pipeline_command, submitted
from highwater.spark.pipelines.command.pipeline_options import StreamOptions, key_values
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.pipelines.files.lease import checkpoint_lease
from highwater.spark.pipelines.files.offset_log import OffsetLog
from highwater.spark.pipelines.running.query_run import run_query
from highwater.spark.pipelines.sending.mirror_rows import COPIED_SCHEMA, MirrorPlan, copying
from highwater.spark.pipelines.sending.targets import Append, check_empty
from highwater.spark.pipelines.session.spark_session import session
from highwater.spark.pipelines.session.task_attempts import NO_SPECULATION, check_attempts
from highwater.spark.pipelines.typed_values.value_schema import check_value_options
from highwater.spark.schema import NO_NULL_HEADERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SPLITTING = ("minpartitions", "maxrecordsperpartition")
_SOURCE_OWN = ("columns", "includeheaders")
# A record that the source took is not to be refused by the mirror's own producer.
_PRODUCER_DEFAULTS = {"max_request_size": 32 * 1024 * 1024}


@dataclass(frozen=True, kw_only=True)
class MirrorOptions(StreamOptions):
    to: Annotated[str, typer.Option(metavar="HOST:PORT,…", help="brokers of the cluster that is written to")]
    replication_factor: Annotated[
        int | None,
        typer.Option(min=1, help="of topics that are made there; default: that cluster's", show_default=False),
    ] = None
    append: Append = False
    to_option: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE", help="a setting of the producer, e.g. highwater.compression=zstd", show_default=False
        ),
    ] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_value_options(self.option, "a mirror copies bytes")
        for name in lower_case(key_values("--option", self.option)):
            if name in _SPLITTING:
                raise UserError(f"--option {name}: two tasks would write one partition, and records change places")
            if name in _SOURCE_OWN:
                raise UserError(f"--option {name}: a mirror copies every column")

    def producer(self) -> dict[str, Any]:
        return {**_PRODUCER_DEFAULTS, **self._settings_of_target("Producer")}

    def target_admin(self) -> dict[str, Any]:
        return self._settings_of_target("Admin")

    def _settings_of_target(self, client: Literal["Producer", "Admin"]) -> dict[str, Any]:
        return client_settings(lower_case(key_values("--to-option", self.to_option)), client)


def run(options: MirrorOptions) -> None:
    """Raises `UserError` and the SDK's errors."""
    mirror = Mirror(options)
    partitions = mirror.prepare()
    spark = session("mirror", options, NO_SPECULATION)
    check_attempts("mirror", spark, NO_SPECULATION)
    begun = HadoopFiles(spark, options.checkpoint).names(f"{options.checkpoint}/offsets")
    if not options.append and not any(map(str.isdecimal, begun)):
        check_empty(mirror.plan.bootstrap, partitions, options.checkpoint, options.target_admin())
    offset_log = OffsetLog(spark, f"{options.checkpoint}/mirror")
    lease = checkpoint_lease(spark, "mirror", options.checkpoint)
    frame = (
        spark.readStream.format("highwater").options(**options.source_options()).option("includeHeaders", "true").load()
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        partitions = mirror.prepare()
        noted = offset_log.read(batch_id)
        if noted is None:
            noted = mirror.ends(partitions)
            lease.check()
            offset_log.write(batch_id, noted)
        lease.check()  # looking took its time
        rows = batch.selectExpr(*(name for name in batch.columns if name != "headers"), NO_NULL_HEADERS)
        rows.mapInArrow(copying(mirror.plan, noted), COPIED_SCHEMA).collect()
        offset_log.purge_before(batch_id)

    with lease.held():
        run_query("mirror", frame, frame.writeStream, options, write)


class Mirror:
    """The two clusters, as the driver sees them."""

    def __init__(self, options: MirrorOptions) -> None:
        self._options = options
        self._target = options.target_admin()
        self.plan = MirrorPlan(tuple(bootstrap_addresses(options.to)), options.producer())

    def prepare(self) -> list[TopicPartition]:
        """Makes the topics that the target lacks; the partitions that are mirrored now.

        Raises `UserError` where the clusters are the same one, or a topic has other partitions there."""
        source_options = self._options.source_options()
        read = parse_read_options(source_options, streaming=True)
        settings = client_settings(lower_case(source_options), "Admin")
        with TopicOffsets(read.bootstrap, read.subscription, settings) as topics:
            partitions = topics.partitions(missing_ok=not read.fail_on_data_loss)
        names = list(dict.fromkeys(partition.topic for partition in partitions))
        with Admin(read.bootstrap, **settings) as source, Admin(self.plan.bootstrap, **self._target) as target:
            if source.describe_cluster().cluster_id == target.describe_cluster().cluster_id:
                raise UserError("--bootstrap and --to are the same cluster: topics would be copied onto themselves")
            there = set(target.list_topics())
            existing = {one.topic: one for one in target.describe_topics([name for name in names if name in there])}
            for wanted in source.describe_topics(names) if names else ():
                if (found := existing.get(wanted.topic)) is None:
                    found = self._made(target, wanted)
                check_target(wanted, found)
        return partitions

    def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of these partitions in the target."""
        with TopicOffsets(self.plan.bootstrap, Subscription(), self._target) as topics:
            return dict(topics.latest(partitions))

    def _made(self, target: Admin, wanted: TopicDescription) -> TopicDescription:
        config = target_config(wanted.config)
        with suppress(TopicAlreadyExistsError):  # another mirror was first
            target.create_topic(wanted.topic, len(wanted.partitions), self._options.replication_factor, config)
        (made,) = target.describe_topics([wanted.topic])
        return made


def target_config(config: Mapping[str, str]) -> dict[str, str]:
    """The configuration that a topic gets in the target: the source's. Records keep the time that they have."""
    return {key: value for key, value in config.items() if key != "message.timestamp.type" and "throttled" not in key}


def check_target(wanted: TopicDescription, found: TopicDescription) -> None:
    """Raises `UserError` where what is copied would not be the same there."""
    here, there = len(wanted.partitions), len(found.partitions)
    if here != there:
        raise UserError(
            f"topic {wanted.topic} has {here} partitions, and {there} in the target: a mirror keeps partitions; give "
            f"it {here} there, or delete it there and let the mirror make it"
        )
    if found.config.get("message.timestamp.type") == "LogAppendTime":
        raise UserError(
            f"topic {wanted.topic} has message.timestamp.type=LogAppendTime in the target, which would put other "
            "timestamps in the place of the records' own: a mirror needs CreateTime"
        )


command = pipeline_command(
    MirrorOptions,
    run,
    "Copy topics to another cluster, with keys, headers, timestamps and partitions as they are.",
)


def main(argv: list[str]) -> int:
    """Runs as `spark-submit` does; returns the exit status."""
    return submitted(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
