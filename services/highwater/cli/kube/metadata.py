"""`highwater kube backup`, `restore` and `rebuild`: the metadata in etcd, and what is to be done when it is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from highwater.cli.kube.interruption import ended_as_by_ctrl_c
from highwater.cli.kube.options import Context, Namespace, ReleaseName, release_of
from highwater.console.counted import counted
from highwater.console.output import errors, screen
from highwater.errors import UserError

if TYPE_CHECKING:
    from highwater.kube.release import Release

AcceptLoss = Annotated[bool, typer.Option("--accept-loss", help="go on where acknowledged records may be missing")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="write nothing, print what would be written")]
Topic = Annotated[
    list[str] | None, typer.Option(metavar="NAME=ID", help="which of two topics of one name there is; may be repeated")
]
Without = Annotated[
    list[int] | None, typer.Option("--without-broker", help="its volumes are gone for good; may be repeated")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask before brokers and controllers are stopped")]
Timeout = Annotated[float, typer.Option(help="seconds that the inventory of a broker may take: it recovers its logs")]
Claim = Annotated[
    str | None,
    typer.Option("--backup-claim", help="a claim with backups, of which it takes the newest; by default the CronJob's"),
]


def backup(
    out: Annotated[Path, typer.Option(help="a directory on this machine")] = Path(),
    namespace: Namespace = None,
    release: ReleaseName = None,
    context: Context = None,
) -> None:
    """Take a backup of the metadata now, and keep it on this machine."""
    found = release_of(namespace, release, context)
    from highwater.kube.lost_etcd import backup_file
    from highwater.kube.lost_etcd.on_release import ReleaseMetadata

    content = ReleaseMetadata(found, say=_say).backup()
    taken = backup_file.parse(content, "what the release sent")
    try:
        out.mkdir(parents=True, exist_ok=True)
        path = backup_file.write(taken, out)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}") from error
    topics = sum(1 for key in taken.entries if key.startswith("/config/topics/"))
    screen.print(
        f"{path}: {counted(len(taken.entries), 'key')}, {counted(topics, 'topic')}, of {taken.taken}", soft_wrap=True
    )


def rebuild(
    backup: Annotated[Path | None, typer.Option(help="a backup on this machine")] = None,
    backup_claim: Claim = None,
    no_backup: Annotated[bool, typer.Option("--no-backup", help="take no backup, though there are some")] = False,
    without_broker: Without = None,
    accept_loss: AcceptLoss = False,
    dry_run: DryRun = False,
    topic: Topic = None,
    yes: Yes = False,
    timeout: Timeout = 3600,
    namespace: Namespace = None,
    release: ReleaseName = None,
    context: Context = None,
) -> None:
    """Make the metadata again in an etcd that lost it altogether, from the brokers' volumes and the newest backup."""
    if no_backup and (backup or backup_claim):
        raise UserError("--no-backup and a backup exclude each other")
    found = release_of(namespace, release, context)
    claim = None if no_backup else backup_claim or _default_claim(found, backup)
    options = _options(accept_loss, topic)
    _run(found, backup, claim, without_broker, options, dry_run=dry_run, yes=yes, timeout=timeout)


def restore(
    backup: Annotated[
        Path | None, typer.Argument(help="a backup on this machine; by default the newest of a claim")
    ] = None,
    backup_claim: Claim = None,
    without_broker: Without = None,
    accept_loss: AcceptLoss = False,
    dry_run: DryRun = False,
    topic: Topic = None,
    yes: Yes = False,
    timeout: Timeout = 3600,
    namespace: Namespace = None,
    release: ReleaseName = None,
    context: Context = None,
) -> None:
    """Put a backup in the place of the metadata that etcd holds, with what the brokers' volumes know since."""
    found = release_of(namespace, release, context)
    claim = backup_claim or _default_claim(found, backup)
    if backup is None and claim is None:
        raise UserError("there is no backup: name a file, or a claim with --backup-claim")
    options = ["--replace", *_options(accept_loss, topic)]
    _run(found, backup, claim, without_broker, options, dry_run=dry_run, yes=yes, timeout=timeout)


def _run(
    release: Release,
    backup: Path | None,
    claim: str | None,
    without: list[int] | None,
    options: list[str],
    *,
    dry_run: bool,
    yes: bool,
    timeout: float,
) -> None:
    from highwater.kube.lost_etcd.on_release import ReleaseMetadata

    doing = "to make the plan, and started again" if dry_run else "meanwhile"
    whose = f"release {release.name} in namespace {release.namespace} at {release.api.host}"
    stopped = f"All brokers and controllers of {whose} are stopped {doing}."
    if yes:
        _say(stopped)
    else:
        typer.confirm(f"{stopped} Go on?", abort=True)
    metadata = ReleaseMetadata(release, say=_say, show=_show, timeout_s=timeout)
    with ended_as_by_ctrl_c():
        status = metadata.rebuild(
            backup=backup,
            claim=claim if backup is None else None,
            without=without or (),
            options=options,
            write=not dry_run,
        )
    if status:
        raise typer.Exit(status)


def _options(accept_loss: bool, topics: list[str] | None) -> list[str]:
    return [*(["--accept-loss"] if accept_loss else []), *(f"--topic={each}" for each in topics or ())]


def _default_claim(release: Release, backup: Path | None) -> str | None:
    from highwater.kube.lost_etcd.on_release import default_claim

    return default_claim(release) if backup is None else None


def _say(text: str) -> None:
    errors.print(text, soft_wrap=True)


def _show(text: str) -> None:
    screen.print(text.rstrip(), soft_wrap=True)
