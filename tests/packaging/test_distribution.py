"""A wheel and a source distribution are built, installed into an empty environment, and used there.

Needs a package index for what the build and the installation need; without one it is skipped, and says so.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME, VERSION = PYPROJECT["project"]["name"], PYPROJECT["project"]["version"]
PIP = ("python", "-m", "pip", "install", "--quiet")
FILES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "proto", "services")

USE = """
import sys
from importlib.metadata import version

import pyarrow as pa

import highwater
from highwater.client.blocking import Admin, Consumer, Producer

assert version("highwater-log") == highwater.__version__
bootstrap = sys.argv[1]
with Admin(bootstrap) as admin:
    admin.create_topic("packaged", partitions=2, replication_factor=1)
with Producer(bootstrap) as producer:
    producer.send("packaged", b"a record", key=b"k")
    producer.flush()
    producer.send_table("packaged", pa.table({"key": ["k", "l"], "value": ["1", "2"]}))
found = []
with Consumer("packaged", bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
    while len(found) < 3:
        found += consumer.poll()
print(sorted(record.value for record in found), highwater.__file__)
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees nothing of the one that the tests run in."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def run(self, *command: str, timeout_s: float = 600) -> str:
        """A program of the environment, outside of the source tree; its output. Fails the test where it fails."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.variables(),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def variables(self) -> dict[str, str]:
        left = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
        return {**left, "PATH": f"{self.bin}:{os.environ['PATH']}"}


def environment(folder: Path) -> Environment:
    venv.create(folder, with_pip=True, symlinks=True)
    return Environment(folder)


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from a copy: the build writes the stubs into its source tree."""
    folder = tmp_path_factory.mktemp("build")
    index = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder / "index"), "hatchling"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if index.returncode != 0:
        pytest.skip(f"no package index can be reached: {index.stderr.strip().splitlines()[-1:]}")
    source = folder / "source"
    source.mkdir()
    for name in FILES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("v1", "__pycache__") if name == "services" else None
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    builder = environment(folder / "builder")
    builder.run(*PIP, "--require-hashes", "--only-binary", ":all:", "--requirement", str(ROOT / "docker" / "build.txt"))
    builder.run(
        "python",
        "-c",
        f"import os; os.chdir({str(source)!r}); from hatchling.build import build_sdist; build_sdist('../out')",
    )
    (sdist,) = (folder / "out").glob("*.tar.gz")
    wheel = ("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir")
    builder.run(*wheel, str(folder / "from-tree"), str(source))
    builder.run(*wheel, str(folder / "from-sdist"), str(sdist))
    (of_tree,) = (folder / "from-tree").iterdir()
    (of_sdist,) = (folder / "from-sdist").iterdir()
    return Built(of_tree, sdist, of_sdist)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    empty = environment(tmp_path_factory.mktemp("installed") / "environment")
    constraints = str(ROOT / "constraints.txt")
    empty.run("python", "-m", "pip", "install", "--quiet", "--constraint", constraints, f"{built.wheel}[local]")
    return empty


@pytest.fixture
def cluster(installed: Environment) -> Iterator[str]:
    """`highwater up` of the installed wheel with one broker; its address."""
    up = subprocess.Popen(
        [
            str(installed.bin / "highwater"),
            "up",
            "--brokers",
            "1",
            "--port",
            "0",
            "--data",
            str(installed.folder / "data"),
        ],
        cwd=installed.folder,
        env=installed.variables(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert up.stdout is not None
        shown = []
        for line in up.stdout:
            shown.append(line)
            if line.startswith("ready in"):
                break
        address = re.search(r"127\.0\.0\.1:\d+", "".join(shown))
        assert address is not None, shown
        yield address[0]
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
        assert up.stdout is not None
        up.stdout.close()


def test_wheel_and_source_distribution_hold_the_same(built: Built) -> None:
    assert built.wheel.name == built.wheel_of_sdist.name == f"{NAME.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(built.wheel) as wheel, zipfile.ZipFile(built.wheel_of_sdist) as other:
        names = set(wheel.namelist())
        assert names == set(other.namelist())
        files = [name for name in names if ".dist-info/" not in name]
    assert {
        "highwater/v1/broker_pb2.py",
        "highwater/v1/broker_pb2_grpc.py",
        "highwater/py.typed",
        "pyspark_highwater/__init__.py",
    } <= names
    assert {name.split("/")[0] for name in files} == {"highwater", "pyspark_highwater"}
    written = {
        str(path.relative_to(ROOT / "services"))
        for path in (ROOT / "services").rglob("*.*")
        if path.is_file() and not {"v1", "__pycache__"} & set(path.parts)
    }
    assert {name for name in files if not name.startswith("highwater/v1/")} == written
    with tarfile.open(built.sdist) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"proto/highwater/v1/broker.proto", "hatch_build.py", "LICENSE", "PKG-INFO"} <= inside
    assert not [name for name in inside if "/v1/" in name and name.startswith("services")]


def test_a_build_is_reproducible(built: Built) -> None:
    assert built.wheel.read_bytes() == built.wheel_of_sdist.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="hashes are of what an image installs")
def test_what_an_image_installs_has_the_hashes_that_are_written_down(built: Built, tmp_path: Path) -> None:
    docker = ROOT / "docker"
    extras = [sys.executable, str(docker / "requirements.py"), str(ROOT / "pyproject.toml"), "server,cli"]
    (tmp_path / "requirements.txt").write_text(
        subprocess.run(extras, capture_output=True, check=True, text=True).stdout
    )
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", "packages"]
    given = ["--constraint", str(ROOT / "constraints.txt"), "--requirement", "requirements.txt"]
    subprocess.run([*download, *given], cwd=tmp_path, check=True, timeout=600)
    check = [sys.executable, str(docker / "hashes.py"), "check", str(docker / "hashes.txt"), "packages"]
    subprocess.run(check, cwd=tmp_path, check=True)
    a_package = next((tmp_path / "packages").iterdir())
    a_package.write_bytes(a_package.read_bytes() + b"\0")
    changed = subprocess.run(check, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert changed.returncode == 1
    assert changed.stderr.startswith(f"{a_package.name}: its hash ")


def test_the_installed_wheel_is_used(installed: Environment, cluster: str) -> None:
    (installed.folder / "use.py").write_text(USE)
    records, _, where = installed.run("python", "use.py", cluster).strip().rpartition(" ")
    assert records == "[b'1', b'2', b'a record']"
    assert Path(where).is_relative_to(installed.folder)
    assert "packaged" in installed.run("highwater", "topics", "list", "--bootstrap", cluster)
    assert installed.run("highwater", "--version").strip() == f"highwater {VERSION}"


def test_what_a_message_says_to_install_adds_to_what_is_there(installed: Environment) -> None:
    """Though no index has the distribution: pip takes the one that is installed, and fetches the extra's packages."""
    sentence = installed.run(
        "python", "-c", "from highwater.extras import how_to_install; print(how_to_install('avro'))"
    )
    assert sentence.strip() == f"pip install '{NAME}[avro]'"
    said = installed.run("python", "-m", "pip", "install", "--dry-run", f"{NAME}[avro]")
    (would_install,) = (line for line in said.splitlines() if line.startswith("Would install"))
    assert [name.rpartition("-")[0] for name in would_install.split()[2:]] == ["fastavro"]
