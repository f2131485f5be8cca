"""`highwater configs describe|set|unset`: configurations of topics, brokers, clients, users and the cluster, changed
while everything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from highwater.cli.completion import names
from highwater.cli.shared_options import with_shared_options
from highwater.console.counted import counted
from highwater.console.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, AsJson, Bootstrap, json_line, screen, table
from highwater.console.record_text import escaped_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highwater.client.admin.configs import ConfigEntry, ConfigResource
    from highwater.client.blocking import Admin

app = typer.Typer(no_args_is_help=True, help="Configurations: of topics, brokers, clients, users and the cluster.")


def _topics(context: typer.Context, incomplete: str) -> list[str]:
    return names(context, incomplete, lambda admin: admin.list_topics())


ValidateOnly = Annotated[bool, typer.Option("--validate-only", help="only check: nothing is changed")]


@dataclass(frozen=True)
class Whose:
    """The options that say of whom a configuration is."""

    topic: Annotated[str | None, typer.Option("--topic", help="of this topic", autocompletion=_topics)] = None
    broker: Annotated[int | None, typer.Option("--broker", min=0, help="of the broker with this id")] = None
    broker_defaults: Annotated[bool, typer.Option("--broker-defaults", help="of all brokers")] = False
    client: Annotated[str | None, typer.Option("--client", help="of clients with this client id")] = None
    client_defaults: Annotated[bool, typer.Option("--client-defaults", help="of clients that have nothing else")] = (
        False
    )
    user: Annotated[
        str | None, typer.Option("--user", help="of this user; with --client of such clients as this user")
    ] = None
    user_defaults: Annotated[bool, typer.Option("--user-defaults", help="of users who have nothing else")] = False
    cluster: Annotated[bool, typer.Option("--cluster", help="of the cluster: what all its services agree on")] = False

    def resource(self) -> ConfigResource:
        """The one resource that they name."""
        from highwater.client import ConfigResource

        topic, broker, client, user = self.topic, self.broker, self.client, self.user
        named = [
            *([ConfigResource.topic(topic)] if topic is not None else []),
            *([ConfigResource.broker(broker)] if broker is not None else []),
            *([ConfigResource.broker()] if self.broker_defaults else []),
            *([ConfigResource.cluster()] if self.cluster else []),
        ]
        any_user, any_client = user is not None or self.user_defaults, client is not None or self.client_defaults
        if any_user and any_client:
            named.append(ConfigResource.user_client(user, client))
        elif any_user:
            named.append(ConfigResource.user(user))
        elif any_client:
            named.append(ConfigResource.client(client))
        twice = (user and self.user_defaults) or (client and self.client_defaults)
        if len(named) != 1 or "" in (topic, client, user) or twice:
            raise typer.BadParameter(
                "say whose configuration it is: one of --topic, --broker, --broker-defaults, --cluster; or of clients "
                "and users, together or each alone, --client, --client-defaults, --user, --user-defaults"
            )
        return named[0]


@app.command("describe")
@with_shared_options
def describe(
    whose: Whose,
    clients: Annotated[bool, typer.Option("--clients", help="all clients that have a configuration")] = False,
    users: Annotated[bool, typer.Option("--users", help="all users that have one, and their clients")] = False,
    set_only: Annotated[bool, typer.Option("--set-only", help="leave out what services were started with")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """Show what counts, and where each value is from: set while running (DYNAMIC_…, CLUSTER), given at the start
    (STATIC), or neither (DEFAULT)."""
    from highwater.client.admin.configs import ConfigResourceType, ConfigSource
    from highwater.client.blocking import Admin

    asked = None
    if not clients and not users:
        asked = whose.resource()
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        if asked is not None:
            found = {asked: admin.describe_configs(asked)}
        else:
            kinds = [ConfigResourceType.CLIENT] if clients else []
            kinds += [ConfigResourceType.USER, ConfigResourceType.USER_CLIENT] if users else []
            found = {resource: entries for kind in kinds for resource, entries in admin.list_configs(kind).items()}
    if set_only:
        started = (ConfigSource.STATIC, ConfigSource.DEFAULT)
        found = {
            resource: [entry for entry in entries if entry.source not in started] for resource, entries in found.items()
        }
    _show(found, json=json)


@app.command("set")
@with_shared_options
def set_(
    items: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="e.g. log.cleaner.threads=2")],
    whose: Whose,
    validate_only: ValidateOnly = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set keys; those not named stay. Services take it over without a restart."""
    from highwater.client.blocking import Admin

    changed = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"{item!r}: write KEY=VALUE")
        changed[key] = value
    resource = whose.resource()
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        admin.alter_configs(resource, changed, validate_only=validate_only)
    what = "could be set" if validate_only else "set"
    screen.print(f"{what} for {_named(resource)}: {escaped_text(' '.join(items))}")


@app.command("unset")
@with_shared_options
def unset(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="e.g. log.cleaner.threads")],
    whose: Whose,
    validate_only: ValidateOnly = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Give keys back: to the default of brokers, to what the service was started with, to its own default."""
    from highwater.client.blocking import Admin

    resource = whose.resource()
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        admin.alter_configs(resource, {}, keys, validate_only=validate_only)
        behind = [] if validate_only else _behind(admin, resource, keys)
    what = "could be unset" if validate_only else "unset"
    screen.print(f"{what} for {_named(resource)}: {escaped_text(' '.join(keys))}")
    for entry in behind:
        screen.print(escaped_text(f"{entry.key} is now {entry.value} ({entry.source.name})"))


def _behind(admin: Admin, resource: ConfigResource, keys: Sequence[str]) -> list[ConfigEntry]:
    """Returns what counts of the keys from now on, where that can be told."""
    from highwater.client import HighwaterError

    try:
        return [entry for entry in admin.describe_configs(resource) if entry.key in keys and entry.value is not None]
    except HighwaterError:
        return []  # it is unset all the same


def _named(resource: ConfigResource) -> str:
    kind = resource.type.name.lower().replace("_", " ")
    if kind == "cluster":
        return "the cluster"
    if kind == "user client":
        user, client = resource.name or "(default)", resource.client_id or "(default)"
        return escaped_text(f"client {client} of user {user}")
    return escaped_text(f"{kind} {resource.name}") if resource.name else f"the default of {kind}s"


def _show(found: dict[ConfigResource, list[ConfigEntry]], *, json: bool) -> None:
    if json:
        for resource, entries in found.items():
            for entry in entries:
                json_line(
                    {
                        "resource": resource.type.name,
                        "name": resource.name,
                        **({"client_id": resource.client_id} if resource.type.name == "USER_CLIENT" else {}),
                        "key": entry.key,
                        "value": entry.value,
                        "source": entry.source.name,
                        "read_only": entry.read_only,
                        "service": entry.service,
                    }
                )
        return
    if len(found) == 1:
        ((resource, entries),) = found.items()
        table(
            _named(resource),
            ["key", "value", "source", "note"],
            [
                [
                    f"{entry.key} ({entry.service})" if entry.service else entry.key,
                    "(each broker's own)" if entry.value is None else entry.value,
                    entry.source.name,
                    "READ_ONLY" if entry.read_only else "",
                ]
                for entry in entries
            ],
        )
        return
    table(
        counted(len(found), "configuration"),
        ["of", "key", "value"],
        [[_named(resource), entry.key, entry.value] for resource, entries in found.items() for entry in entries],
    )
