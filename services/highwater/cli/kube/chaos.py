"""`highwater kube chaos`: breaks a release on purpose, one thing after the other."""

from __future__ import annotations

import dataclasses
import random
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from highwater.cli.kube.interruption import ended_as_by_ctrl_c
from highwater.cli.kube.options import Context, Namespace, ReleaseName, release_of
from highwater.console.counted import counted
from highwater.console.output import AsJson, errors, json_line, screen
from highwater.errors import UserError

if TYPE_CHECKING:
    from highwater.kube.chaos.run import Event
    from highwater.kube.release import Release


def chaos(
    duration: Annotated[float, typer.Option(min=1, help="seconds; the last fault may take longer")] = 600,
    seed: Annotated[int | None, typer.Option(help="of what is drawn; by default any, which is told")] = None,
    kill: Annotated[
        str,
        typer.Option(
            help="kinds of faults, separated by commas: broker, controller, etcd, broker+controller, container, pause, "
            "etcd-pause, network, drain, volume, etcd-volume; by default all but the last three"
        ),
    ] = "",
    back: Annotated[float, typer.Option(min=1, help="seconds in which all has to be ready and in sync again")] = 180,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    namespace: Namespace = None,
    release: ReleaseName = None,
    context: Context = None,
    json: AsJson = False,
) -> None:
    """Delete, kill, pause and cut off parts of a release, drawn by a seed, each when all is back from the last.
    Ends at the first that does not come back. For clusters whose users have been told."""
    found = release_of(namespace, release, context)
    from highwater.kube.chaos.deck import checked
    from highwater.kube.chaos.run import Chaos, how_to_load, loads

    wanted = found.replicas()
    kinds = checked([one.strip() for one in kill.split(",") if one.strip()], wanted)
    if not yes:
        _confirm(found, [str(kind) for kind in kinds])
    if not list(loads(found)):
        errors.print(
            "no load runs in this namespace: chaos without one only shows that pods come back. To see that nothing "
            f"acknowledged is lost, run: {how_to_load(found, duration)}",
            markup=False,
            soft_wrap=True,
        )
    seed = random.randrange(10**6) if seed is None else seed

    def tell(event: Event) -> None:
        if json:
            json_line(dataclasses.asdict(event))
        else:
            screen.print(f"{event.time} {event.kind}: {event.said}", soft_wrap=True)

    with ended_as_by_ctrl_c():
        done = Chaos(found, seed, kinds, wanted, tell, back).run(duration)
    if json:
        json_line({"faults": done, "seed": seed})
    else:
        screen.print(f"{counted(done, 'fault')}, seed {seed}; all came back")


def _confirm(release: Release, kinds: list[str]) -> None:
    """Raises `UserError`."""
    lost = [kind for kind in kinds if kind.endswith("volume")]
    warning = f" {' and '.join(lost)} DELETE VOLUMES: topics with one replica lose records." if lost else ""
    where = f"release {release.name} in namespace {release.namespace} at {release.api.host}"
    if not sys.stdin.isatty():
        raise UserError(f"this breaks {where}: give --yes where nobody can be asked")
    errors.print(f"This breaks {where}: {', '.join(kinds)}.{warning}", soft_wrap=True)
    if typer.prompt("Type the release's name to go on", err=True) != release.name:
        raise UserError("nothing was broken: that is not the release's name")
