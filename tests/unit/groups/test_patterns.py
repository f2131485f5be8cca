"""Patterns match what Python's `re` matches, and in linear time."""

from __future__ import annotations

import re
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.groups.patterns import PatternError, compile_pattern, matching


@pytest.mark.parametrize(
    ("pattern", "names", "expected"),
    [
        ("orders", ["orders", "orders2", "my.orders"], {"orders"}),
        ("^orders$", ["orders", "orders2"], {"orders"}),
        (r"orders\..*", ["orders.eu", "orders", "ordersXeu"], {"orders.eu"}),
        ("(eu|us)-.+", ["eu-1", "us-", "de-1"], {"eu-1"}),
        ("[a-c]{2}x?", ["ab", "abx", "abc", "a"], {"ab", "abx"}),
        ("(?:a|b)?c", ["c", "ac", "bc", "abc"], {"c", "ac", "bc"}),
        ("a*?b", ["b", "aab"], {"b", "aab"}),
        (r"[.\-_]x[]a]", [".xa", "-xa", "_xb"], {".xa", "-xa"}),
        ("[^a]+", ["b", "a", "ba"], {"b"}),
        (r"\d{1,3}", ["1", "1234"], {"1"}),
        (r"\w\W\D", ["a-b", "a-1", "abc"], {"a-b"}),
        ("(a+)+b", ["aaab", "b"], {"aaab"}),
        ("a{2,}", ["a", "aa", "aaaa"], {"aa", "aaaa"}),
        ("", ["a", ""], {""}),
        ("|a", ["a", ""], {"a", ""}),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, names: list[str], expected: set[str]) -> None:
    assert matching(pattern, names) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        *("a**", "a*+", "a{2}{3}", "a{3,2}", "(?=a)b", "(?<=a)b", "(?i)a", "(?P<n>a)", "(?>a)", r"(a)\1", r"a\b", "\\"),
        *("(", "[", "[]", "[b-a]", "[\\d-z]", "a)", "*", "a^", "a$b", "a" * 256, "a{501}", "(a{30}){30}", "(" * 21),
        *("((){999}){999}", "(((){9999}){9999}){9999}", "((" + "|" * 200 + "){9999}|){9}"),  # hours, of nothing
    ],
)
def test_what_is_none_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


@given(
    st.text(alphabet="ab.*+?{}[]()|\\-,12d", max_size=14),
    st.lists(st.text(alphabet="ab.-12", max_size=8), min_size=1, max_size=12),
)
def test_what_is_taken_matches_as_pythons_does(pattern: str, names: list[str]) -> None:
    try:
        compile_pattern(pattern)
    except PatternError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of '[[' and '--' in sets
        python = re.compile(pattern)
    assert matching(pattern, names) == {name for name in names if python.fullmatch(name)}


parts = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", ""]),
    lambda inner: st.one_of(
        st.builds("({})".format, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
        st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])),
    ),
    max_leaves=8,
)


@given(parts, st.lists(st.text(alphabet="ab1", max_size=7), min_size=1, max_size=12))
def test_patterns_of_every_form_match_as_pythons_do(pattern: str, names: list[str]) -> None:
    python = re.compile(pattern)
    assert matching(pattern, names) == {name for name in names if python.fullmatch(name)}


@pytest.mark.parametrize(
    "pattern", ["(a|a)*b", "(a+)+b", "a?" * 120, "(a|a)" * 50 + "b", "(.*)*.*.*.*.*b", "(.?){499}b"]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    began = time.process_time()
    assert not matching(pattern, ["a" * 249] * 3)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("pattern", ["orders-.*", "[a-z]+-[0-9]+", "(.?){499}", "([ab-]?[o-z0-4]?){249}", ".*o.{20}"])
def test_ten_thousand_names_take_a_moment(pattern: str) -> None:
    names = [f"orders-of-customer-{number * 7919 % 100_003:05}" for number in range(10_000)]
    began = time.process_time()
    found = matching(pattern, names)
    assert time.process_time() - began < 2
    assert "?" in pattern or found == {name for name in names if re.fullmatch(pattern, name)}  # `re` would take ages
