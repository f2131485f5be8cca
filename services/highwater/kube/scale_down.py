"""`python -m highwater.kube.scale_down --brokers N`: refuses, by its exit status, where a broker that is to go hosts
replicas. The chart runs it before an upgrade that takes brokers away."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from highwater.client.admin.descriptions import TopicDescription
from highwater.client.blocking import Admin
from highwater.client.exceptions import HighwaterError

_NAMED = 5


def refusal(topics: Iterable[TopicDescription], brokers: int) -> str | None:
    """The sentence that says why there cannot be only so many brokers, ids from 0; None: there can."""
    hosted: Counter[int] = Counter()
    named: list[str] = []
    for topic in topics:
        for partition in topic.partitions:
            going = [broker for broker in partition.replicas if broker >= brokers]
            hosted.update(going)
            if going and len(named) < _NAMED:
                named.append(f"{topic.topic}-{partition.partition}")
    if not hosted:
        return None
    replicas = ", ".join(f"broker {broker} hosts {count} replicas" for broker, count in sorted(hosted.items()))
    more = "" if len(named) < _NAMED else ", …"
    return (
        f"there cannot be only {brokers} brokers: {replicas} ({', '.join(named)}{more}), which would be lost or left "
        f"with fewer replicas than they were made with. Keep broker.replicas at {max(hosted) + 1}, or delete those "
        "topics first"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--brokers", type=int, required=True, help="how many there are to be")
    parser.add_argument("--wait", type=float, default=60, help="seconds that the cluster may take to answer")
    given = parser.parse_args(arguments)
    try:
        with Admin(given.bootstrap, max_block_ms=given.wait * 1000) as admin:
            refused = refusal(admin.describe_topics(), given.brokers)
    except HighwaterError as error:
        print(f"what the brokers host is not known, so none is taken away: {error}", file=sys.stderr)
        return 1
    if refused is not None:
        print(refused, file=sys.stderr)
        return 1
    print(f"no broker from {given.brokers} on hosts anything")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
