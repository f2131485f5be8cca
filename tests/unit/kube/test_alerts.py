"""The chart's alerts, under the metrics of the faults that they are for."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from chart_alerts import rules
from promql import Alert, Recording, UnknownPromQLError, evaluate, seconds, values_of

TESTS = yaml.safe_load(Path(__file__).with_name("alerts_test.yaml").read_text())
PROMTOOL = shutil.which("promtool")
STEP_S = 15.0


def recording(test: dict[str, Any]) -> Recording:
    recorded = Recording()
    for series in test["input_series"]:
        selector = promql_parser.parse(series["series"])
        labels = {each.name: each.value for each in selector.matchers.matchers} | {"__name__": selector.name}
        for index, value in enumerate(values_of(series["values"])):
            if value is not None:
                recorded.add(index * seconds(test["interval"]), labels, value)
    return recorded


@pytest.mark.parametrize("test", TESTS["tests"], ids=lambda test: test["name"])
def test_alerts_fire_for_their_faults_and_for_no_others(test: dict[str, Any]) -> None:
    recorded = recording(test)
    for rule in rules():
        asked = {seconds(one["eval_time"]): one for one in test["alert_rule_test"] if one["alertname"] == rule["alert"]}
        if not asked:
            continue
        alert = Alert(rule["alert"], rule["expr"], seconds(rule["for"]))
        for step in range(int(max(asked) / STEP_S) + 1):
            firing = alert.look(recorded, step * STEP_S)
            if (expected := asked.get(step * STEP_S)) is not None:
                told = sorted(sorted((dict(labels) | {"severity": rule["severity"]}).items()) for labels in firing)
                wanted = sorted(sorted(each["exp_labels"].items()) for each in expected["exp_alerts"])
                assert told == wanted, (rule["alert"], expected["eval_time"])


def test_every_alert_is_seen_to_fire_and_not_to_fire() -> None:
    asked = [one for test in TESTS["tests"] for one in test["alert_rule_test"]]
    names = {rule["alert"] for rule in rules()}
    assert {one["alertname"] for one in asked if one["exp_alerts"]} == names
    assert {one["alertname"] for one in asked if not one["exp_alerts"]} == names


@pytest.mark.skipif(PROMTOOL is None, reason="needs Prometheus's promtool on the PATH")
def test_promtool_finds_the_same(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    # Without annotations, which promtool would compare, too.
    made = [
        {"alert": rule["alert"], "expr": rule["expr"], "for": rule["for"], "labels": {"severity": rule["severity"]}}
        for rule in rules()
    ]
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump({"groups": [{"name": "highwater", "rules": made}]}))
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(TESTS))
    command = [PROMTOOL, "test", "rules", "test.yaml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


# The evaluator


def recorded(**series: list[float]) -> Recording:
    """A sample a minute of each; `a__x` has the label `of="x"`."""
    made = Recording()
    for name, values in series.items():
        metric, _, label = name.partition("__")
        for minute, value in enumerate(values):
            made.add(60.0 * minute, {"__name__": metric} | ({"of": label} if label else {}), value)
    return made


def number(expression: str, recording: Recording, at_s: float) -> float:
    (value,) = evaluate(expression, recording, at_s).values()
    return value


def test_rates_are_extrapolated_as_prometheus_does_it() -> None:
    # 5 a minute from 100 on: samples at 0..300 s, the range reaches from 30 s to 330 s.
    data = recorded(a=[100, 105, 110, 115, 120, 125])
    # Samples 60..300: 20 in 240 s; 30 s to the range's start and 30 s to its end are within an interval: all of it.
    assert number("increase(a[5m])", data, 330) == pytest.approx(25)
    assert number("rate(a[5m])", data, 330) == pytest.approx(25 / 300)
    # A counter that began anew goes on from what it had.
    assert number("increase(a[5m])", recorded(a=[0, 10, 20, 5, 15, 25]), 330) == pytest.approx(35 * 300 / 240)
    # Not below zero: at 0 s it was 0, so the part before is not made up.
    assert number("increase(a[10m])", recorded(a=[0, 60]), 60) == pytest.approx(60)
    assert evaluate("rate(a[5m])", recorded(a=[1]), 0) == {}


def test_a_series_is_looked_back_for_five_minutes() -> None:
    data = recorded(a=[7])
    assert number("a", data, 299) == 7
    assert evaluate("a", data, 300) == {}
    assert list(evaluate('absent(a{of="x"})', data, 0)) == [(("of", "x"),)]
    assert evaluate("absent(a)", data, 0) == {}


def test_quantiles_are_interpolated_within_a_bucket() -> None:
    made = Recording()
    for bound, count in (("0.1", 50), ("0.2", 90), ("+Inf", 100)):
        made.add(0, {"__name__": "b", "le": bound}, count)
    assert number("histogram_quantile(0.7, b)", made, 0) == pytest.approx(0.15)
    assert number("histogram_quantile(0.25, b)", made, 0) == pytest.approx(0.05)
    assert number("histogram_quantile(0.99, b)", made, 0) == 0.2


def test_operators_match_by_labels_and_comparisons_filter() -> None:
    data = recorded(a__x=[1], a__y=[2], b__x=[10])
    assert evaluate("a + b", data, 0) == {(("of", "x"),): 11}
    assert evaluate("sum(a) * 2 > 5", data, 0) == {(): 6}
    assert evaluate("count(a > 5) or vector(0)", data, 0) == {(): 0}
    assert evaluate("max by (of) (a) > 1", data, 0) == {(("of", "y"),): 2}
    assert math.isnan(number("(a - a) / (b - b)", data, 0))
    assert number("time() - max(b)", data, 25) == 15


@pytest.mark.parametrize(
    "expression",
    ["a offset 5m", "irate(a[5m])", "topk(1, a)", "a + on (of) b", "sum without (of) (a)", "a > bool 1", "-a"],
)
def test_what_the_evaluator_does_not_know_it_refuses(expression: str) -> None:
    with pytest.raises(UnknownPromQLError):
        evaluate(expression, recorded(a=[1], b=[1]), 0)
