"""A server of S3's interface on this machine (moto), and what Spark and the tests need to use it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer
from pyarrow.fs import S3FileSystem

_KEYS = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}


@dataclass(frozen=True)
class ObjectStore:
    host: str  # with its port
    bucket: str

    @property
    def _client(self) -> Any:
        return boto3.client("s3", endpoint_url=f"http://{self.host}", region_name="us-east-1", **_KEYS)

    def make_bucket(self) -> None:
        self._client.create_bucket(Bucket=self.bucket)

    @property
    def root(self) -> str:
        """As Spark names it."""
        return f"s3a://{self.bucket}"

    def names(self, directory: str) -> list[str]:
        """Of the objects below a directory, as paths in the bucket."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{directory}/")
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def table(self, directory: str) -> pa.Table:
        """What is in a Delta table."""
        given = {"AWS_ENDPOINT_URL": f"http://{self.host}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        return DeltaTable(f"s3://{self.bucket}/{directory}", storage_options={**given, **keys}).to_pyarrow_table()

    def files(self, directory: str) -> pa.Table:
        """What is in Parquet files, as any reader finds it."""
        system = S3FileSystem(
            access_key="any", secret_key="any", endpoint_override=self.host, scheme="http", region="us-east-1"
        )
        found = ds.dataset(f"{self.bucket}/{directory}", filesystem=system, format="parquet", partitioning="hive")
        return found.to_table()

    def settings(self, scratch: Path) -> list[str]:
        """Of Spark, as `NAME=VALUE`."""
        s3a = {
            "endpoint": f"http://{self.host}",
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": "any",
            "secret.key": "any",
            "buffer.dir": str(scratch),
        }
        return [f"spark.hadoop.fs.s3a.{name}={value}" for name, value in s3a.items()]


@contextlib.contextmanager
def object_store(bucket: str) -> Iterator[ObjectStore]:
    """With an empty bucket; whatever the buckets of a process are called, its servers share them."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        store = ObjectStore(f"{host}:{port}", bucket)
        store.make_bucket()
        yield store
    finally:
        server.stop()
