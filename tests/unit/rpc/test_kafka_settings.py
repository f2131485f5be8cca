"""Kafka's settings that mean nothing here, and `log.dir`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from highwater.configuration.kafka_keys import MEANINGLESS_KEYS
from highwater.errors import UserError
from highwater.fetcher.settings import FetcherSettings
from highwater.log_storage.settings import LogStorageSettings
from highwater.rpc.settings import load

NEEDED = {"listen": "h:1", "broker.id": "1"}


def test_they_are_left_out_with_what_to_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.network.threads=3\nzookeeper.connect=localhost:2181\nlog.segment.bytes=5000\n")
    with caplog.at_level(logging.WARNING):
        settings = load(LogStorageSettings, NEEDED | {"log.dirs": "/a", "num.io.threads": "8"}, [config])
    assert settings.log_segment_bytes == 5000
    assert [record.getMessage() for record in caplog.records] == [
        f"{key} means nothing here, and is left out: {MEANINGLESS_KEYS[key]}"
        for key in ("num.network.threads", "zookeeper.connect", "num.io.threads")
    ]


def test_log_dir_is_one_of_the_directories(tmp_path: Path) -> None:
    assert load(LogStorageSettings, NEEDED | {"log.dir": "/a"}).log_dirs == [Path("/a")]
    both = load(LogStorageSettings, NEEDED | {"log.dirs": "/a,/b", "log.dir": "/c"})
    assert both.log_dirs == [Path("/a"), Path("/b"), Path("/c")]
    config = tmp_path / "server.properties"
    config.write_text("log.dir=/x\n")
    assert load(LogStorageSettings, NEEDED | {"log.dirs": "/a"}, [config]).log_dirs == [Path("/a")]


def test_what_nobody_knows_is_refused_as_before() -> None:
    with pytest.raises(UserError, match="num.io.thread"):
        load(LogStorageSettings, NEEDED | {"log.dirs": "/a", "num.io.thread": "8"})
    with pytest.raises(UserError, match="log.dir"):
        load(FetcherSettings, NEEDED | {"log.storage": "h:2", "replica.manager": "h:3", "log.dir": "/a"})
