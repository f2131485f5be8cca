"""What `highwater` does before and around its commands: its version, Ctrl-C, closed pipes, and what it loads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import highwater
from highwater.records import Record, encode_rows

RUN = "from highwater.cli.main import main; main()"
SLOW = {"grpc", "pyarrow", "numpy", "pydantic_settings", "aetcd", "kubernetes", "pyspark", "prometheus_client"}
OF_PIPELINES = {"grpc", "pyarrow", "numpy", "prometheus_client", "highwater.v1", "highwater.log_storage"}
SERVICES = {
    f"highwater.{name}" for name in ("controller", "fetcher", "log_storage", "metadata", "replica_manager", "v1")
}

# Runs a command line, and prints last which modules it has loaded.
LOADED = """
import json, sys
from highwater.cli.main import main
sys.argv = ["highwater", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print()
print(json.dumps(sorted(sys.modules)))
"""


def highwater_command(*arguments: str, code: str = RUN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def loaded(*arguments: str) -> set[str]:
    done = highwater_command(*arguments, code=LOADED)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_version() -> None:
    done = highwater_command("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"highwater {highwater.__version__}\n", "")
    assert "--version" in highwater_command("--help").stdout


def test_files_of_tls_are_for_its_protocol() -> None:
    done = highwater_command("--ssl-ca-file", "ca.pem", "topics", "list")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--ssl-ca-file is for --security-protocol SSL: give both" in done.stderr
    done = highwater_command("--security-protocol", "SSL", "--ssl-ca-file", "/no/ca.pem", "topics", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert "ssl_ca_file /no/ca.pem cannot be read" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["topics"],
        ["topics", "list"],
        ["produce"],
        ["up"],
        ["log", "dump"],
        ["kube", "status"],
        ["pipeline", "archive"],
    ],
    ids=" ".join,
)
def test_help_needs_nothing_slow(command: list[str]) -> None:
    modules = loaded(*command, "--help")
    needed = OF_PIPELINES if command[:1] == ["pipeline"] else set()
    assert modules & ((SLOW | SERVICES) - needed) == set()


def test_a_client_command_loads_no_service() -> None:
    modules = loaded("topics", "list", "--bootstrap", "127.0.0.1:1")
    assert "grpc" in modules
    assert modules & (SERVICES - {"highwater.v1"}) == set()
    assert modules & (SLOW - {"grpc", "pyarrow", "numpy"}) == set()


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("topics create x --partitions many", "invalid value for '--partitions': 'many' is no whole number"),
        ("up --port 99999", "invalid value for '--port': 99999 is too large: it is 65535 or less"),
        ("consume x --max-records=-1", "invalid value for '--max-records': -1 is too small: it is 0 or more"),
        ("produce x --acks 2", "invalid value for '--acks': '2' is not one of 'all', '1', '0'"),
        ("topics apply x --wait long", "invalid value for '--wait': 'long' is no number"),
    ],
)
def test_a_wrong_value_is_told_in_our_words(command: str, sentence: str) -> None:
    done = highwater_command(*command.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"highwater: {sentence}; see ")


def test_an_interrupt_while_modules_are_imported_is_quiet() -> None:
    """As Ctrl-C during a slow start. The import system would print a traceback of whatever it was in."""
    code = """
import signal, sys

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Slow())
signal.signal(signal.SIGINT, signal.default_int_handler)
from highwater.cli.main import main
main()
"""
    done = highwater_command("topics", "list", code=code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_that_is_ignored_stays_so() -> None:
    """As in the background of a shell without job control."""
    code = """
import signal
from highwater.cli.main import _quietly_interrupted

signal.signal(signal.SIGINT, signal.SIG_IGN)
with _quietly_interrupted():
    signal.raise_signal(signal.SIGINT)
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""
    assert highwater_command(code=code).returncode == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def segment(path: Path, batches: int) -> Path:
    file = path / f"{0:020}.log"
    with file.open("wb") as log:
        for number in range(batches):
            log.write(encode_rows([Record(0, 1, None, b"v" * 100, ())], base_offset=number))
    return file


@pytest.mark.parametrize("options", [[], ["--json"], ["--records"]], ids=lambda options: " ".join(options) or "plain")
def test_a_reader_that_has_enough_of_a_dump_is_no_read_error(tmp_path: Path, options: list[str]) -> None:
    file = segment(tmp_path, 20_000)
    with subprocess.Popen(
        [sys.executable, "-c", RUN, "log", "dump", str(file), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as dump:
        assert dump.stdout is not None
        assert dump.stderr is not None
        assert dump.stdout.readline()
        dump.stdout.close()
        assert dump.wait(60) == 1
        assert dump.stderr.read() == ""


@pytest.mark.parametrize("suffix", ["log", "index", "timeindex"])
def test_an_empty_file_of_a_log_is_said_to_be_empty(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"{0:020}.{suffix}"
    file.touch()
    done = highwater_command("log", "dump", str(file), "--json")
    what = "batch" if suffix == "log" else "entry"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{file} is empty: it has no {what}\n")
