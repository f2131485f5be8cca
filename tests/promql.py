"""An evaluator of what the chart's alerts use of PromQL, over recorded samples: instant and range selectors, `rate`,
`increase`, `absent`, `histogram_quantile`, `time`, `vector`; `sum`, `max`, `min` and `count`, by labels; arithmetic,
comparisons, `and`, `or` and `unless`, one to one on all labels. Anything else is refused, not guessed.

It follows Prometheus's own rules: a series is looked back for five minutes, and rates are extrapolated to the ends of
their ranges as far as samples reach.
"""

from __future__ import annotations

import math
import operator
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import promql_parser as ast

LOOKBACK_S = 300.0
STALE = object()  # in place of a value: the series ended here

Labels = tuple[tuple[str, str], ...]  # sorted, `__name__` among them
Vector = dict[Labels, float]

_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a),
}
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "count": lambda values: float(len(values)),
}


class UnknownPromQLError(Exception):
    """The expression has what this evaluator does not know."""


class Recording:
    """Samples of series by the time, in seconds."""

    def __init__(self) -> None:
        self._times: dict[Labels, list[float]] = defaultdict(list)
        self._values: dict[Labels, list[Any]] = defaultdict(list)

    def add(self, at_s: float, labels: Mapping[str, str], value: Any) -> None:
        key = tuple(sorted(labels.items()))
        assert not self._times[key] or self._times[key][-1] < at_s
        self._times[key].append(at_s)
        self._values[key].append(value)

    def select(self, selector: Any) -> list[Labels]:
        matchers = list(selector.matchers.matchers)
        return [
            labels
            for labels in self._times
            if (not selector.name or dict(labels)["__name__"] == selector.name)
            and all(_matches(each, dict(labels).get(each.name, "")) for each in matchers)
        ]

    def at(self, labels: Labels, at_s: float) -> float | None:
        """The last value within `LOOKBACK_S`."""
        index = bisect_right(self._times[labels], at_s) - 1
        if index < 0 or self._times[labels][index] <= at_s - LOOKBACK_S or self._values[labels][index] is STALE:
            return None
        return float(self._values[labels][index])

    def within(self, labels: Labels, from_s: float, to_s: float) -> list[tuple[float, float]]:
        """The samples after `from_s` and up to `to_s`."""
        times = self._times[labels]
        first, last = bisect_right(times, from_s), bisect_right(times, to_s)
        return [(times[i], v) for i in range(first, last) if (v := self._values[labels][i]) is not STALE]


def evaluate(expression: str, recording: Recording, at_s: float) -> Vector:
    """An instant vector; a number is one without labels. Raises `UnknownPromQLError`."""
    found = _value(ast.parse(expression), recording, at_s)
    return {(): found} if isinstance(found, float) else found


def _value(node: Any, recording: Recording, at_s: float) -> Vector | float:
    match type(node).__name__:
        case "NumberLiteral":
            return float(node.val)
        case "ParenExpr":
            return _value(node.expr, recording, at_s)
        case "VectorSelector" if node.offset is None and node.at is None:
            values = ((labels, recording.at(labels, at_s)) for labels in recording.select(node))
            return {labels: value for labels, value in values if value is not None}
        case "Call":
            return _call(node, recording, at_s)
        case "AggregateExpr" if str(node.op) in _AGGREGATIONS and node.param is None:
            return _aggregate(node, _vector(node.expr, recording, at_s))
        case "BinaryExpr":
            return _binary(node, _value(node.lhs, recording, at_s), _value(node.rhs, recording, at_s))
    raise UnknownPromQLError(node.prettify())


def _vector(node: Any, recording: Recording, at_s: float) -> Vector:
    found = _value(node, recording, at_s)
    if isinstance(found, float):
        raise UnknownPromQLError(f"a number where series are needed: {node.prettify()}")
    return found


def _call(node: Any, recording: Recording, at_s: float) -> Vector | float:
    name, arguments = node.func.name, list(node.args)
    match name:
        case "time":
            return float(at_s)
        case "vector":
            value = _value(arguments[0], recording, at_s)
            assert isinstance(value, float)
            return {(): value}
        case "absent":
            return {} if _vector(arguments[0], recording, at_s) else {_of_matchers(arguments[0]): 1.0}
        case "rate" | "increase":
            (matrix,) = arguments
            assert isinstance(matrix.range, timedelta)
            range_s = matrix.range.total_seconds()
            grown = (
                (labels, _increase(recording.within(labels, at_s - range_s, at_s), at_s - range_s, at_s))
                for labels in recording.select(matrix.vector_selector)
            )
            divisor = range_s if name == "rate" else 1.0
            return {_unnamed(labels): value / divisor for labels, value in grown if value is not None}
        case "histogram_quantile":
            quantile = _value(arguments[0], recording, at_s)
            assert isinstance(quantile, float)
            return _histogram_quantile(quantile, _vector(arguments[1], recording, at_s))
    raise UnknownPromQLError(node.prettify())


def _increase(samples: Sequence[tuple[float, float]], from_s: float, to_s: float) -> float | None:
    """`extrapolatedRate` of Prometheus's promql/functions.go, for counters."""
    if len(samples) < 2:
        return None
    (first_s, first), (last_s, last) = samples[0], samples[-1]
    grown = last - first
    for (_, before), (_, after) in pairwise(samples):
        if after < before:  # it began anew
            grown += before
    sampled_s = last_s - first_s
    average_s = sampled_s / (len(samples) - 1)
    to_start_s, to_end_s = first_s - from_s, to_s - last_s
    if to_start_s >= 1.1 * average_s:
        to_start_s = average_s / 2
    if grown > 0 and first >= 0:
        to_start_s = min(to_start_s, sampled_s * (first / grown))  # a counter was not below zero
    if to_end_s >= 1.1 * average_s:
        to_end_s = average_s / 2
    return grown * (sampled_s + to_start_s + to_end_s) / sampled_s


def _histogram_quantile(quantile: float, buckets: Vector) -> Vector:
    by_labels: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        bound = dict(labels).get("le")
        if bound is not None:
            by_labels[tuple(each for each in labels if each[0] not in ("le", "__name__"))].append((float(bound), count))
    found: Vector = {}
    for labels, counts in by_labels.items():
        counts.sort()
        total = counts[-1][1]
        if math.inf not in {bound for bound, _ in counts} or not total:
            continue
        rank = quantile * total
        index = next(i for i, (_, count) in enumerate(counts) if count >= rank)
        if index == len(counts) - 1:
            found[labels] = counts[-2][0]
            continue
        low, below = (0.0, 0.0) if index == 0 else counts[index - 1]
        high, count = counts[index]
        found[labels] = low + (high - low) * (rank - below) / (count - below)
    return found


def _aggregate(node: Any, values: Vector) -> Vector:
    modifier = node.modifier
    kept: set[str] = set()
    if modifier is not None:
        if modifier.type != ast.AggModifierType.By:
            raise UnknownPromQLError(node.prettify())
        kept = set(modifier.labels)
    groups: defaultdict[Labels, list[float]] = defaultdict(list)
    for labels, value in values.items():
        groups[tuple(each for each in labels if each[0] in kept)].append(value)
    return {labels: _AGGREGATIONS[str(node.op)](group) for labels, group in groups.items()}


def _binary(node: Any, left: Vector | float, right: Vector | float) -> Vector | float:
    name, modifier = str(node.op), node.modifier
    if modifier is not None and (modifier.matching is not None or modifier.return_bool):
        raise UnknownPromQLError(node.prettify())
    if name in ("and", "or", "unless"):
        assert isinstance(left, dict)
        assert isinstance(right, dict)
        there = {_unnamed(labels) for labels in right}
        match name:
            case "and":
                return {labels: value for labels, value in left.items() if _unnamed(labels) in there}
            case "unless":
                return {labels: value for labels, value in left.items() if _unnamed(labels) not in there}
        here = {_unnamed(labels) for labels in left}
        return left | {labels: value for labels, value in right.items() if _unnamed(labels) not in here}
    if name in _COMPARISONS:
        compare = _COMPARISONS[name]
        if isinstance(left, float):
            raise UnknownPromQLError(node.prettify())
        if isinstance(right, float):
            return {labels: value for labels, value in left.items() if compare(value, right)}
        others = {_unnamed(labels): value for labels, value in right.items()}
        return {
            labels: value
            for labels, value in left.items()
            if _unnamed(labels) in others and compare(value, others[_unnamed(labels)])
        }
    if name not in _ARITHMETIC:
        raise UnknownPromQLError(node.prettify())
    compute = _ARITHMETIC[name]
    if isinstance(left, float) and isinstance(right, float):
        return compute(left, right)
    if isinstance(right, float):
        assert isinstance(left, dict)
        return {_unnamed(labels): compute(value, right) for labels, value in left.items()}
    if isinstance(left, float):
        return {_unnamed(labels): compute(left, value) for labels, value in right.items()}
    others = {_unnamed(labels): value for labels, value in right.items()}
    return {
        _unnamed(labels): compute(value, others[_unnamed(labels)])
        for labels, value in left.items()
        if _unnamed(labels) in others
    }


def _matches(matcher: Any, value: str) -> bool:
    match matcher.op:
        case ast.MatchOp.Equal:
            return bool(value == matcher.value)
        case ast.MatchOp.NotEqual:
            return bool(value != matcher.value)
        case ast.MatchOp.Re:
            return re.fullmatch(matcher.value, value) is not None
        case ast.MatchOp.NotRe:
            return re.fullmatch(matcher.value, value) is None
    raise UnknownPromQLError(str(matcher))


def _of_matchers(node: Any) -> Labels:
    """The labels of what `absent` says is not there: those that a selector names by equality."""
    if type(node).__name__ != "VectorSelector":
        return ()
    equal = (each for each in node.matchers.matchers if each.op == ast.MatchOp.Equal)
    return tuple(sorted((each.name, each.value) for each in equal))


def _unnamed(labels: Labels) -> Labels:
    return tuple(each for each in labels if each[0] != "__name__")


class Alert:
    """One rule: `for` as in a rule file, evaluated every `every_s`. `firing` has the labels of what fires."""

    def __init__(self, name: str, expression: str, for_s: float) -> None:
        self.name = name
        self._expression = expression
        self._for_s = for_s
        self._since: dict[Labels, float] = {}

    def look(self, recording: Recording, at_s: float) -> set[Labels]:
        """To be called in the order of time."""
        true = {_unnamed(labels) for labels in evaluate(self._expression, recording, at_s)}
        self._since = {labels: self._since.get(labels, at_s) for labels in true}
        return {labels for labels, since in self._since.items() if at_s - since >= self._for_s}


def seconds(text: str) -> float:
    """`1h30m`."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return float(sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([smhd])", text)))


def values_of(notation: str) -> Iterable[Any]:
    """The values of promtool's notation: `0x3 5 1+2x2 _ stale` is 0 0 0 0, 5, 1 3 5, none, and the end; None: no
    sample."""
    for part in notation.split():
        if part in ("_", "stale"):
            yield None if part == "_" else STALE
            continue
        if found := re.fullmatch(r"_x(\d+)", part):
            yield from [None] * int(found[1])
            continue
        found = re.fullmatch(r"(-?[\d.]+)(?:([+-][\d.]+))?(?:x(\d+))?", part)
        assert found is not None, part
        start, step, times = float(found[1]), float(found[2] or 0), int(found[3] or 0)
        yield from (start + step * number for number in range(times + 1))
