"""What Spark does about a task that fails or is slow, and which pipelines refuse it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from highwater.errors import UserError
from highwater.spark.pipelines.session.task_attempts import NO_SPECULATION, ONCE, check_attempts


def session(master: str, **conf: str) -> Any:
    settings = {f"spark.{key.replace('_', '.')}": value for key, value in conf.items()}
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, getConf=lambda: settings))


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "local[*,1]"])
def test_within_one_process_a_task_is_run_once_whatever_the_settings_say(master: str) -> None:
    check_attempts("replay", session(master, task_maxFailures="8", speculation="true"), ONCE)


@pytest.mark.parametrize("master", ["local[2,4]", "local[*, 2]"])
def test_but_for_a_master_that_names_a_number_of_failures(master: str) -> None:
    with pytest.raises(
        UserError,
        match=r"this session \(local\[.*\]\) has spark\.task\.maxFailures=[24]: start it with --master local\[[2*]\]$",
    ):
        check_attempts("replay", session(master), ONCE)
    check_attempts("mirror", session(master), NO_SPECULATION)


@pytest.mark.parametrize("master", ["spark://host:7077", "k8s://https://host", "local-cluster[2,1,1024]", "yarn"])
def test_on_a_cluster_the_settings_count(master: str) -> None:
    check_attempts("replay", session(master, task_maxFailures="1"), ONCE)
    check_attempts("mirror", session(master), NO_SPECULATION)
    with pytest.raises(UserError, match=r"has spark\.task\.maxFailures=4: start it with --conf spark\.task\.maxF"):
        check_attempts("replay", session(master), ONCE)
    with pytest.raises(UserError, match=r"mirror may .* has spark\.speculation=true: .* spark\.speculation=false$"):
        check_attempts("mirror", session(master, speculation="True"), NO_SPECULATION)
    with pytest.raises(UserError, match=r"maxFailures=3 and spark\.speculation=true"):
        check_attempts("replay", session(master, speculation="true", task_maxFailures="3"), ONCE)
