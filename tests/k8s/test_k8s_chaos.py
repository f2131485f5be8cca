"""Parts of a release die under load; nothing that was acknowledged is lost, and all comes back without a hand."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from kubernetes_cluster import Release, RunningLoad

from highwater.kube.chaos.deck import checked
from highwater.kube.chaos.run import Chaos, Event

SECONDS = float(os.environ.get("SECONDS", "90"))
SEED = int(os.environ.get("SEED", str(random.randrange(10**6))))
KINDS = [one for one in os.environ.get("KINDS", "").split(",") if one]
_AFTER_S = 1200.0  # the last fault may take long; the load is stopped before


@pytest.mark.short
def test_nothing_acknowledged_is_lost_while_pods_die(release: Release, values: dict[str, Any], image: str) -> None:
    release.install(values)
    load = RunningLoad.start(release, image, seconds=SECONDS + _AFTER_S)
    wanted = release.installed.replicas()

    def tell(event: Event) -> None:
        print(f"{event.at_s:7.1f} s {event.kind}: {event.said}", flush=True)

    print(f"SEED={SEED}")
    done = Chaos(release.installed, SEED, checked(KINDS, wanted), wanted, tell).run(SECONDS)
    load.stop()
    print(f"SEED={SEED}: {done} faults; {load.finish(600)}")
