"""Readings of Prometheus endpoints, and what an idle second costs by them."""

from __future__ import annotations

import pytest

from bench.scale.rounds import Second, grown_by, second_of
from bench.scale.samples import by_label, merged, samples_of, since, total

FIRST = """
# HELP bench_sent_messages_total messages
# TYPE bench_sent_messages_total counter
bench_sent_messages_total{method="/Broker/FetchStream"} 10.0
bench_sent_messages_total{method="/Broker/Metadata"} 1.0
# TYPE bench_sent_bytes_total counter
bench_sent_bytes_total{method="/Broker/FetchStream"} 1000.0
bench_sent_bytes_total{method="/Broker/Metadata"} 50.0
# TYPE other gauge
other 7.0
"""
SECOND = FIRST.replace("} 10.0", "} 30.0").replace("} 1000.0", "} 5000.0")


def test_samples_are_added_up_by_name_and_labels() -> None:
    read = samples_of(FIRST)
    assert total(read, "other") == 7
    assert total(read, "bench_sent_messages_total") == 11
    assert total(read, "bench_sent_messages_total", method="/Broker/Metadata") == 1
    assert total(read, "missing") == 0
    assert by_label(read, "bench_sent_bytes_total", "method") == {"/Broker/FetchStream": 1000, "/Broker/Metadata": 50}


def test_what_lies_between_two_readings_counts_new_samples_from_zero() -> None:
    grown = since({}, samples_of(FIRST))
    assert total(grown, "bench_sent_messages_total") == 11
    assert total(since(samples_of(FIRST), samples_of(SECOND)), "bench_sent_messages_total") == 20


def test_a_counter_that_fell_is_of_a_process_that_was_started_anew() -> None:
    with pytest.raises(ValueError, match=r"bench_sent_bytes_total has fallen: the process was started anew"):
        since(samples_of(SECOND), samples_of(FIRST))


def test_readings_of_several_processes_are_one() -> None:
    assert total(merged([samples_of(FIRST), samples_of(SECOND)]), "bench_sent_messages_total") == 42


def test_an_idle_second_is_what_all_processes_sent_in_the_window_over_its_length() -> None:
    before = {"a": samples_of(FIRST), "b": samples_of(FIRST)}
    after = {"a": samples_of(SECOND), "b": samples_of(FIRST)}
    second = second_of(600, before, after, {"fetcher": 3.0}, took_s=10)
    assert second == Second(600, {"/Broker/FetchStream": 2.0}, {"/Broker/FetchStream": 400.0}, {"fetcher": 3.0})


def test_growth_leaves_out_what_etcd_burns() -> None:
    few = Second(100, {"x": 10.0}, {"x": 100.0, "y": 100.0}, {"fetcher": 1.0, "log-storage": 1.0, "etcd": 50.0})
    many = Second(300, {"x": 10.0}, {"x": 500.0, "y": 100.0}, {"fetcher": 3.0, "log-storage": 2.0, "etcd": 1.0})
    assert grown_by(few, many) == {
        "scale_round_messages": 1.0,
        "scale_round_bytes": 3.0,
        "scale_round_cpu": 2.5,
    }
