"""What the build of the image relies on. The build itself is docs/operations.md's `docker build`."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
OF_THE_REPOSITORY = [ROOT / "Dockerfile", ROOT / "docker" / "spark" / "Dockerfile"]  # which is their context
DOCKERFILES = [*OF_THE_REPOSITORY, ROOT / "docker" / "etcd" / "Dockerfile"]
PACKAGES = Path(sysconfig.get_path("platlib"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

requirements = runpy.run_path(str(ROOT / "docker" / "requirements.py"))["requirements"]
hashes = runpy.run_path(str(ROOT / "docker" / "hashes.py"))
slimmer = runpy.run_path(str(ROOT / "docker" / "slim.py"))

# Every file that the process has loaded, as a module or as a library.
LOADED = """
import importlib, json, sys
for name in sys.argv[1:]: importlib.import_module(name)
files = {module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
with open("/proc/self/maps") as maps:
    files |= {line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6}
print(json.dumps(sorted(files)))
"""


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def last_stage(dockerfile: Path) -> list[tuple[str, str]]:
    every = instructions(dockerfile)
    return every[max(place for place, (word, _) in enumerate(every) if word == "FROM") :]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_program_has_loaded_what_the_image_leaves_out() -> None:
    left_out = {path for paths in slimmer["unused"](PACKAGES).values() for path in paths}
    programs = [
        f"highwater.{service}.process" for service in ("log_storage", "replica_manager", "fetcher", "controller")
    ]
    others = [
        "pyarrow.compute",
        "pyarrow.ipc",
        *(f"highwater.client.blocking.{client}" for client in ("admin", "consumer", "producer")),
        "highwater.cli.app",
        "highwater.log_storage.inspect.verify",
    ]
    line = [sys.executable, "-c", LOADED, *programs, *others]
    loaded = json.loads(subprocess.run(line, capture_output=True, text=True, check=True, timeout=110).stdout)
    assert any("libarrow.so" in path for path in loaded)
    assert {path.name for path in left_out} >= {"include", "tests"}
    assert not [path for path in map(Path, loaded) if left_out & {path, *path.parents}]


def test_what_is_left_out_goes_and_is_counted(tmp_path: Path) -> None:
    for name in (
        "pyarrow/libarrow_flight.so.1",
        "pyarrow/tests/data/x.h",
        "pyarrow/lib.so",
        "numpy/core.pyi",
        "numpy/np.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1234")
    saved = slimmer["slim"](tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["lib.so", "np.py"]
    assert {what: size for what, size in saved.items() if size} == {
        "of all: tests": 4,
        "of all: type stubs": 4,
        "pyarrow: Flight": 4,
    }


def test_requirements_of_extras_that_name_others() -> None:
    assert requirements(PROJECT, []) == PROJECT["dependencies"]
    extras = PROJECT["optional-dependencies"]
    assert set(requirements(PROJECT, ["local"])) == {
        *(*PROJECT["dependencies"], *extras["server"], *extras["cli"]),
        *(line for line in extras["local"] if not line.startswith("highwater")),
    }
    with pytest.raises(SystemExit, match="there is no extra sever: choose from server, cli"):
        requirements(PROJECT, ["sever"])


def pinned(text: str) -> set[tuple[str, str]]:
    lines = [line.split()[0].partition("==") for line in text.splitlines() if re.match(r"\w.*==", line)]
    return {(hashes["normalized"](name), version) for name, _, version in lines}


def test_every_version_that_is_pinned_has_a_hash() -> None:
    written = hashes["parse"]((ROOT / "docker" / "hashes.txt").read_text())
    assert pinned((ROOT / "constraints.txt").read_text()) == {one for one in written if one[0] != "pyspark"}
    (spark,) = (rest for word, rest in instructions(DOCKERFILES[1]) if word == "ARG" and rest.startswith("PYSPARK="))
    assert ("pyspark", spark.removeprefix("PYSPARK=")) in written
    assert all(written.values())


def test_what_builds_is_pinned_with_hashes() -> None:
    written = hashes["parse"]((ROOT / "docker" / "build.txt").read_text())
    assert all(written.values())
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {tuple(one.split("==")) for one in requires} <= written.keys()


def test_files_that_an_image_may_install() -> None:
    files = {
        *("p-1-cp311-cp311-manylinux_2_28_x86_64.whl", "p-1-cp312-cp312-manylinux_2_28_aarch64.whl"),
        *("p-1-cp39-abi3-manylinux_2_28_x86_64.whl", "p-1-py3-none-any.whl"),
    }
    others = {
        *("p-1-cp310-cp310-manylinux_2_28_x86_64.whl", "p-1-cp313-cp313t-manylinux_2_28_x86_64.whl"),
        *("p-1-cp311-cp311-macosx_11_0_arm64.whl", "p-1-cp311-cp311-musllinux_1_2_x86_64.whl", "p-1.tar.gz"),
    }
    assert hashes["wanted"](files | others) == sorted(files)
    assert hashes["wanted"](["p-1.tar.gz", "p-1-cp311-cp311-macosx_11_0_arm64.whl"]) == ["p-1.tar.gz"]


def test_a_package_that_is_not_the_one_written_down_is_named(tmp_path: Path) -> None:
    (tmp_path / "some_name-1.0-py3-none-any.whl").write_bytes(b"one")
    (tmp_path / "other-2.tar.gz").write_bytes(b"two")
    one = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    known = hashes["parse"](f"some-name==1.0 \\\n    --hash=sha256:{one}\nother==2 --hash=sha256:{one}\n")
    assert hashes["problems"](known, tmp_path) == [
        "other-2.tar.gz: its hash 3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3 is not among those "
        "written down: it is another file"
    ]
    (known_no_more,) = hashes["problems"]({}, tmp_path)[1:]
    assert known_no_more.startswith("some_name-1.0-py3-none-any.whl: this version has no hash")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_last_stage_runs_as_nobody_in_particular_and_hears_signals(dockerfile: Path) -> None:
    stage = last_stage(dockerfile)
    assert [rest for word, rest in stage if word == "USER"] == ["10001:10001"]  # a number: runAsNonRoot asks for one
    started = [rest for word, rest in stage if word in {"CMD", "ENTRYPOINT"}]
    assert started
    assert all(isinstance(json.loads(rest), list) for rest in started)  # with a shell as process 1 none arrives
    assert not [rest for word, rest in stage if word == "RUN" and re.search(r"\b(apt|apt-get|pip|gcc)\b", rest)]


def test_the_build_finds_what_it_copies() -> None:
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {
        source
        for dockerfile in OF_THE_REPOSITORY
        for word, rest in instructions(dockerfile)
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert sorted(copied) == sorted(let_in)
    assert all((ROOT / source).exists() for source in copied)


def test_the_base_image_is_an_argument_with_a_version() -> None:
    arguments = [rest for word, rest in instructions(DOCKERFILES[0]) if word == "ARG"]
    assert re.fullmatch(r"BASE=docker\.io/library/python:3\.\d+-slim-\w+", arguments[0])
    assert {rest.split()[0] for word, rest in instructions(DOCKERFILES[0]) if word == "FROM"} == {"${BASE}"}


def test_sparks_executor_is_started_with_what_spark_says(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    said = {
        "SPARK_HOME": "/spark",
        "SPARK_JAVA_OPT_0": "-Da=with a space",
        "SPARK_JAVA_OPT_1": "-Db=2",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_DRIVER_URL": "spark://driver:1",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "archive-exec-3",
    }
    started = [str(ROOT / "docker" / "spark" / "entrypoint.sh"), "executor"]
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(started, env={**path, **said}, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines() == [
        *("-Da=with a space", "-Db=2", "-Xms512m", "-Xmx512m", "-cp", ":/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://driver:1", "--executor-id", "3", "--cores", "2", "--app-id", "spark-1"),
        *("--hostname", "10.0.0.1", "--resourceProfileId", "0", "--podName", "archive-exec-3"),
    ]
    command = [started[0], "echo", "a command"]
    assert subprocess.run(command, env=path, capture_output=True, text=True, check=True).stdout == "a command\n"


def test_the_job_runs_a_pipeline_that_its_image_has() -> None:
    documents = list(yaml.safe_load_all((ROOT / "k8s" / "archive.yaml").read_text()))
    (job,) = (one for one in documents if one["kind"] == "Job")
    (driver,) = job["spec"]["template"]["spec"]["containers"]
    assert f"--conf=spark.kubernetes.container.image={driver['image']}" in driver["command"]
    assert driver["image"] == f"highwater-spark:{PROJECT['version']}"
    (script,) = (argument for argument in driver["command"] if argument.endswith(".py"))
    name = script.removeprefix("/opt/highwater/pipelines/")
    assert (ROOT / "services" / "highwater" / "spark" / "pipelines" / name).exists()
    template = yaml.safe_load(next(one for one in documents if one["kind"] == "ConfigMap")["data"]["executor.yaml"])
    assert template["spec"]["securityContext"] == job["spec"]["template"]["spec"]["securityContext"]
