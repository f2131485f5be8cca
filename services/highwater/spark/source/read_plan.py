"""The plan of a read, which each of its tasks gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from highwater.spark.options.client_settings import client_settings
from highwater.spark.options.data_source_options import ReadOptions, lower_case
from highwater.spark.values.value_options import ValueOptions


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Goes to the executors pickled."""

    bootstrap: tuple[str, ...]
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    poll_timeout_ms: int
    consumer: dict[str, Any]  # settings of the SDK's `Consumer`
    values: ValueOptions | None = None  # None: values are bytes


def read_plan(options: ReadOptions, given: Mapping[str, str]) -> ReadPlan:
    return ReadPlan(
        options.bootstrap,
        options.columns,
        options.fail_on_data_loss,
        options.poll_timeout_ms,
        {**client_settings(lower_case(given), "Consumer"), "on_corrupt": options.on_corrupt},
        options.values,
    )
