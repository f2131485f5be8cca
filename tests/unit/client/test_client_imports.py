"""What importing the SDK brings along."""

import subprocess
import sys

import highwater.client


def test_a_name_is_imported_when_it_is_used() -> None:
    told = (
        "import sys; from highwater.client import HighwaterError, TopicPartition; print('grpc' in sys.modules); "
        "from highwater.client import Admin; print('grpc' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "True"]


def test_every_name_can_be_had_and_is_listed() -> None:
    for name in highwater.client.__all__:
        assert getattr(highwater.client, name) is not None
    assert set(highwater.client.__all__) <= set(dir(highwater.client))
    assert not hasattr(highwater.client, "Nothing")
