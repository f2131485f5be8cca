"""The modules that importing the SDK brings along."""

import subprocess
import sys

import highwater.client.blocking


def test_a_name_is_imported_when_it_is_used() -> None:
    told = (
        "import sys; from highwater.client import HighwaterError, TopicPartition; print('grpc' in sys.modules); "
        "from highwater.client import Admin; print('grpc' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "True"]


def test_scan_is_imported_when_it_is_used() -> None:
    told = (
        "import sys; import highwater; print('pyarrow' in sys.modules); "
        "from highwater import scan; print('pyarrow' in sys.modules, scan is highwater.scan, hasattr(highwater, 'no'))"
    )
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "True", "True", "False"]


def test_each_blocking_client_is_imported_by_itself() -> None:
    told = (
        "import sys; from highwater.client.blocking import Admin; "
        "print([name for name in ('producer', 'consumer') if f'highwater.client.{name}.{name}' in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"


def test_nothing_of_servers_and_commands_comes_with_the_clients() -> None:
    told = (
        "import sys; from highwater.client.blocking import Admin, Consumer, Producer; "
        "print({'aetcd', 'prometheus_client', 'pydantic', 'typer'} & {name.split('.')[0] for name in sys.modules})"
    )
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    assert said == "set()\n"


def test_every_name_can_be_had_and_is_listed() -> None:
    for name in highwater.client.__all__:
        assert getattr(highwater.client, name) is not None
    assert set(highwater.client.__all__) <= set(dir(highwater.client))
    assert not hasattr(highwater.client, "Nothing")
    for name in highwater.client.blocking.__all__:
        assert getattr(highwater.client.blocking, name) is not None
    assert set(highwater.client.blocking.__all__) <= set(dir(highwater.client.blocking))
    assert not hasattr(highwater.client.blocking, "Nothing")
