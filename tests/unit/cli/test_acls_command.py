"""`highwater acls` and `highwater tokens`: what their options say, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from highwater.cli.administration import acls, tokens
from highwater.errors import UserError
from highwater.security.acls import ResourceType
from highwater.security.principal import user
from highwater.security.tokens import TokenFile

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


def named(
    *resources: tuple[ResourceType, str],
    allowed: tuple[str, ...] = ("User:a",),
    denied: tuple[str, ...] = (),
    operations: list[str] | None = None,
    pattern: str = "literal",
    **what: bool,
) -> list[str]:
    flags: Any = {"producer": False, "consumer": False} | what
    return [str(acl) for acl in acls._named(allowed, denied, operations, list(resources), pattern, **flags)]


def test_an_acl_for_each_principal_operation_and_resource() -> None:
    assert named((TOPIC, "t"), (TOPIC, "u"), operations=["read", "write"]) == [
        f"ALLOW User:a {operation} on TOPIC {name}" for name in ("t", "u") for operation in ("READ", "WRITE")
    ]
    assert named((TOPIC, "t"), denied=("User:b",)) == ["ALLOW User:a ALL on TOPIC t", "DENY User:b ALL on TOPIC t"]
    assert named((GROUP, "g"), operations=["read"], pattern="prefixed") == ["ALLOW User:a READ on GROUP g*"]


def test_what_a_producer_and_a_consumer_need() -> None:
    assert named((TOPIC, "t"), producer=True) == [
        f"ALLOW User:a {operation} on TOPIC t" for operation in ("WRITE", "DESCRIBE", "CREATE")
    ]
    assert named((TOPIC, "t"), (GROUP, "g"), consumer=True) == [
        "ALLOW User:a READ on TOPIC t",
        "ALLOW User:a DESCRIBE on TOPIC t",
        "ALLOW User:a READ on GROUP g",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"allowed": ()}, "--allow-principal"),
        ({"allowed": ("alice",)}, "write User:name"),
        ({"operations": ["fly"]}, "none of"),
        ({"operations": ["read"], "producer": True}, "leave --operation out"),
        ({"pattern": "match"}, "pattern type"),
    ],
)
def test_what_makes_no_acl_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        named((TOPIC, "t"), **arguments)
    with pytest.raises(UserError, match="name what the ACLs are for"):
        named()
    with pytest.raises(UserError, match="says nothing of a GROUP"):
        named((GROUP, "g"), producer=True)


def run(*words: str) -> str:
    result = CliRunner().invoke(tokens.app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_tokens_are_made_listed_and_removed(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    first = run("add", "User:alice", "--file", str(file)).strip()
    second = run("add", "User:bob", "--file", str(file)).strip()
    known = TokenFile(file)
    assert [known.principal_of(each) for each in (first, second)] == [user("alice"), user("bob")]
    assert file.stat().st_mode & 0o077 == 0
    listed = run("list", "--file", str(file), "--json").splitlines()
    assert len(listed) == 2
    assert first.partition(".")[0] in listed[0]
    file.write_text(f"# a comment\n{file.read_text()}")
    run("remove", first, "--file", str(file))
    assert [known.principal_of(each) for each in (first, second)] == [None, user("bob")]
    assert file.read_text().startswith("# a comment\n")
    with pytest.raises(UserError, match="there is no token"):
        run("remove", first, "--file", str(file))
    with pytest.raises(UserError, match="write User:name"):
        run("add", "alice", "--file", str(file))
