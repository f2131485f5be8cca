"""The documentation says what the code says: metrics, settings, options, error codes, rules, links, examples."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from highwater.cli.app import app
from highwater.client import Admin, Consumer, Producer, Scan, exceptions
from highwater.configuration.dynamic_keys import BROKER_KEYS, CLIENT_KEYS, CLUSTER_KEYS
from highwater.controller.settings import ControllerSettings
from highwater.errors import ErrorCode
from highwater.fetcher.settings import FetcherSettings
from highwater.log_storage.settings import LogStorageSettings
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.settings import ServiceSettings

ROOT = Path(__file__).parents[2]
CODE = ROOT / "services" / "highwater"
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SERVICES = {
    "log-storage": LogStorageSettings,
    "replica-manager": ReplicaManagerSettings,
    "fetcher": FetcherSettings,
    "controller": ControllerSettings,
}
NOT_INSTALLED = ("duckdb", "fastapi", "polars", "pyspark")  # in the environment of the tests; what examples use besides
EXPORTED = {"cli": "group"}  # what `highwater groups export` serves begins so; all else with the package's name
METRIC_SUFFIXES = {
    **{"counter": "_total", "gauge": "", "latency": "_seconds"},
    **{"read_counter": "_total", "read_gauge": "", "timing": "_seconds"},
}


def section(page: Path, heading: str) -> str:
    """From a heading to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", page.read_text(), re.M | re.S)
    assert found is not None, f"{page.name} has no section {heading!r}"
    return found[1]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row."""
    for line in text.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|\- ]+", line):
            yield [cell.strip() for cell in line.strip("|").split("|")]


# Metrics


@cache
def metrics_in_code() -> set[str]:
    """Every `counter("name", ...)`, `gauge(...)` and `latency(...)`, under the name that Prometheus sees. What
    `telemetry/` counts each service has under its own."""
    found = set()
    for path in CODE.glob("*/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in METRIC_SUFFIXES:
                name = str(node.args[0].value).removesuffix("_total") + METRIC_SUFFIXES[called]
                package = path.relative_to(CODE).parts[0]
                owners = SERVICES if package == "telemetry" else [EXPORTED.get(package, package)]
                found.update(f"highwater_{owner.replace('-', '_')}_{name}" for owner in owners)
    return found


def test_every_metric_is_described_and_every_described_one_exists() -> None:
    described = set(re.findall(r"^\| `(highwater_\w+)`", (DOCS / "metrics.md").read_text(), re.M))
    assert described == metrics_in_code()
    assert len(described) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_a_metric_that_does_not_exist(page: Path) -> None:
    services = "|".join(name.replace("-", "_") for name in SERVICES)
    named = set(re.findall(rf"\bhighwater_(?:{services})_\w+\b", page.read_text()))
    assert named <= metrics_in_code()


# Settings


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value not in ("", {}, [], ()) else "empty"


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_is_described_with_its_default(service: str) -> None:
    kind: type[ServiceSettings] = SERVICES[service]
    described = {cells[0]: cells[1] for cells in rows(section(DOCS / "operations.md", service)) if cells[0][:1] == "`"}
    in_code = {
        f"`{name.replace('_', '.')}`": "required" if field.is_required() else shown(field.default)
        for name, field in kind.model_fields.items()
    }
    assert described == in_code


def test_every_setting_that_changes_while_services_run_is_described() -> None:
    described = [
        (key, kinds)
        for cells in rows(section(DOCS / "operations.md", "Changed while services run"))
        for key in re.findall(r"`([^`]+)`", cells[0])
        if (kinds := cells[1]) in ("cluster", "brokers", "clients, users")
    ]
    assert len(described) == len(dict(described))
    assert dict(described) == {
        **dict.fromkeys(CLUSTER_KEYS, "cluster"),
        **dict.fromkeys(BROKER_KEYS, "brokers"),
        **dict.fromkeys(CLIENT_KEYS, "clients, users"),
    }


# The SDK's options


@pytest.mark.parametrize("client", [Producer, Consumer, Scan, Admin], ids=lambda client: client.__name__)
def test_every_option_of_the_sdk_is_described_with_its_default(client: type) -> None:
    table = (DOCS / "sdk.md").read_text().split(f"| {client.__name__} option | default | |")[1].split("\n\n")[0]
    described = {cells[0]: ast.literal_eval(cells[1].strip("`")) for cells in rows(table)}
    in_code = {
        f"`{name}`": parameter.default
        for name, parameter in inspect.signature(client).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    assert described == in_code


def test_every_error_of_the_sdk_is_described() -> None:
    described = {cells[0].strip("`"): cells[1] for cells in rows(section(DOCS / "sdk.md", "Errors"))}
    del described["error"]
    in_code = {
        name: "yes" if issubclass(kind, exceptions.RetriableError) else "no"
        for name, kind in vars(exceptions).items()
        if inspect.isclass(kind)
        and issubclass(kind, exceptions.HighwaterError)
        and kind is not exceptions.HighwaterError
    }
    assert described == in_code


# The protocol


def test_every_error_code_is_described_with_its_number_and_retriable_flag() -> None:
    table = [cells for cells in rows(section(DOCS / "protocol.md", "Error codes")) if cells[0].startswith("`")]
    described = {cells[0].split("`")[1]: (int(cells[1]), cells[2]) for cells in table}
    assert described == {code.name: (int(code), "yes" if code.retriable else "no") for code in ErrorCode}


def test_every_rpc_is_named() -> None:
    services = section(DOCS / "protocol.md", "Services")
    for proto in (ROOT / "proto" / "highwater" / "v1").glob("*.proto"):
        for rpc in re.findall(r"^ +rpc (\w+)\(", proto.read_text(), re.M):
            assert re.search(rf"\b{rpc}\b", services), f"{proto.name}: {rpc} is not in docs/protocol.md"


# The rules


def test_every_rule_that_the_code_cites_is_there() -> None:
    page = (DOCS / "replication.md").read_text()
    there = set(re.findall(r"^- \*\*(\d+\.\d+)\*\*", page, re.M))
    sources = [path for root in (CODE, ROOT / "proto", ROOT / "tests") for path in root.rglob("*.*")]
    cited = {
        rule
        for path in sources
        if path.suffix in (".py", ".proto") and path.parent != CODE / "v1"
        for rule in re.findall(r"RULES (\d+\.\d+)", path.read_text())
    }
    cited |= {path.name.split("-")[0] for path in (ROOT / "tests" / "scenarios").glob("[0-9]*.txt")}
    assert cited <= there


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    packages = "|".join(path.name for path in CODE.iterdir() if path.is_dir())
    for name in re.findall(rf"`((?:{packages})/[\w/]+\.py)`", page.read_text()):
        assert (CODE / name).is_file(), name
    for name in re.findall(r"`((?:tests|demo|bench|proto)/[\w/.-]+\.\w+)`", page.read_text()):
        assert (ROOT / name).is_file(), name


def test_every_module_of_the_architecture_exists() -> None:
    for package, files in rows(section(DOCS / "architecture.md", "Which module does what")):
        folder = CODE / package.strip("`/")
        if folder.name in ("package", "v1") or "," in package:
            continue
        for name in re.findall(r"`(\w+)`", files):
            if name.islower():  # else a class
                assert (folder / f"{name}.py").is_file(), f"{package} {name}"


# Links and examples


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *(DOCS / f"{name}.md" for name in ("sdk", "howto", "tutorial"))],
    ids=lambda page: page.name,
)
def test_examples_compile_and_import_what_exists(page: Path) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    assert examples
    for number, example in enumerate(examples, 1):
        tree = ast.parse(example, f"{page.name}, example {number}")
        compile(tree, f"{page.name}, example {number}", "exec")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module is not None
                if find_spec(node.module.partition(".")[0]) is None:
                    assert node.module.startswith(NOT_INSTALLED)
                    continue
                module = import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), f"{page.name}, example {number}"


# Commands


@cache
def commands() -> Any:
    return get_command(app)


def named(line: str) -> Iterator[list[str]]:
    """The words of every `highwater …` in a line of a page's console, or between its backticks."""
    for command in re.findall(r"(?:^[^`]*?\$ |`|\| )(highwater [^`|]+)", line):
        words = command.split("  #")[0].replace("\\", "").split()
        yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in page.read_text().replace("\\\n", "").splitlines():
        for words in named(line):
            found, path, rest = commands(), "highwater", list(words)
            while isinstance(found, TyperGroup) and rest and re.fullmatch(r"[a-z-]+", rest[0]) and rest[0] != "--help":
                if rest[0].startswith("-"):
                    break
                name = rest.pop(0)
                found = found.get_command(None, name)  # type: ignore[arg-type]
                path += f" {name}"
                assert found is not None, f"{page.name}: there is no {path}: {line.strip()}"
            if path in {"highwater health"}:  # which reads its command line itself
                continue
            known = {option for parameter in found.params for option in parameter.opts} | {"--help", "--version"}
            for word in rest:
                option = re.match(r"--[a-z][a-z-]*", word)
                assert option is None or option[0] in known, f"{page.name}: {path} has no {word}: {line.strip()}"
