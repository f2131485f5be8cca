"""`--dead-letter TOPIC`: records whose values cannot be processed go there, with their key, value and headers.

Behind their own headers stand, in this order, why, and where they came from:

    highwater.error, highwater.topic, highwater.partition, highwater.offset, highwater.timestamp (ms since 1970)

Each goes there once, also where a micro-batch is run again: before its records are sent, the ends of the topic are
written to an offset log in the checkpoint, and those that stand behind these ends are not sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from highwater.client.blocking import Admin
from highwater.client.cluster.bootstrap import bootstrap_addresses
from highwater.client.topic_partition import TopicPartition
from highwater.spark.offsets.topic_offsets import TopicOffsets
from highwater.spark.options.client_settings import PREFIXES, client_settings
from highwater.spark.options.data_source_options import Subscription, lower_case
from highwater.spark.pipelines.files.lease import Lease
from highwater.spark.pipelines.files.offset_log import OffsetLog, offsets_text
from highwater.spark.pipelines.typed_values.value_schema import ValueSchemaOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ERROR = "highwater.error"
_PLACE = {"topic": "string", "partition": "int", "offset": "bigint"}
_ADDED = (ERROR, *(f"highwater.{name}" for name in _PLACE), "highwater.timestamp")
# A record that the source took is not to be refused by the sink's producer.
_PRODUCER_DEFAULTS = {"highwater.max.request.size": str(32 * 1024 * 1024)}


def check_dead_letter_topic(options: ValueSchemaOptions) -> None:
    """Confirms that the topic for dead letters exists. Raises the SDK's errors."""
    if options.dead_letter is not None:
        with Admin(bootstrap_addresses(options.bootstrap)) as admin:
            admin.describe_topics([options.dead_letter])


class DeadLetters:
    """The dead letters of one streaming query, whose offset log is in `directory`."""

    def __init__(self, spark: SparkSession, options: ValueSchemaOptions, directory: str, lease: Lease) -> None:
        """`lease`, which is held, says that nobody else sends with this offset log."""
        assert options.dead_letter is not None
        self._topic = options.dead_letter
        self._lease = lease
        self._offset_log = OffsetLog(spark, directory)
        self._bootstrap = tuple(bootstrap_addresses(options.bootstrap))
        given = {name: value for name, value in options.source_options().items() if name.lower().startswith(PREFIXES)}
        self._settings = {**_PRODUCER_DEFAULTS, **given}

    def write(self, bad: DataFrame, batch: int) -> None:
        """`bad` has the columns `error`, `rawValue`, and those of a read with headers, but for the value."""
        noted, ends = self._offset_log.read(batch), self._ends()
        self._lease.check()
        if noted is None:
            self._offset_log.write(batch, ends)
        elif noted != ends:
            # By the error, too: another pipeline may send its letter of the same record.
            bad = bad.join(self._there(bad.sparkSession, noted, ends), [*_PLACE, "error"], "left_anti")
        bad.select("key", bad.rawValue.alias("value"), _headers().alias("headers")).write.format("highwater").options(
            **self._settings
        ).option("topic", self._topic).mode("append").save()
        self._offset_log.purge_before(batch)

    def _ends(self) -> dict[TopicPartition, int]:
        settings = client_settings(lower_case(self._settings), "Admin")
        with TopicOffsets(self._bootstrap, Subscription((self._topic,)), settings) as topics:
            return dict(topics.latest(topics.partitions()))

    def _there(
        self, spark: SparkSession, noted: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> DataFrame:
        """The records that have come to the topic since the logged offsets."""
        begins = {partition: min(noted.get(partition, 0), end) for partition, end in ends.items()}
        headers = (
            spark.read.format("highwater")
            .options(**self._settings)
            .option("subscribe", self._topic)
            .option("startingOffsets", offsets_text(begins))
            .option("endingOffsets", offsets_text(ends))
            .option("failOnDataLoss", "false")  # retention goes on
            .option("columns", "headers")
            .load()
            .selectExpr(f"slice(headers, -{len(_ADDED)}, {len(_ADDED)}) added")
        )
        names = ", ".join(f"'{name}'" for name in _ADDED)
        ours = headers.where(f"transform(added, h -> h.key) = array({names})")
        return ours.selectExpr(
            *(
                f"try_cast(cast(added[{place}].value as string) as {kind}) {name}"
                for place, (name, kind) in enumerate({"error": "string", **_PLACE}.items())
            )
        )


def _headers() -> Column:
    from pyspark.sql import functions as f

    kind = "array<struct<key:string,value:binary>>"
    said = {
        ERROR: f.col("error"),
        **{f"highwater.{name}": f.col(name).cast("string") for name in _PLACE},
        "highwater.timestamp": f.unix_millis("timestamp").cast("string"),
    }
    pairs = (f.struct(f.lit(name).alias("key"), one.cast("binary").alias("value")) for name, one in said.items())
    added = f.array(*pairs).cast(kind)
    return f.concat(f.coalesce(f.col("headers"), f.array().cast(kind)), added)
