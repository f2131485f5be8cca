"""`highwater configs describe|set|unset`: configurations of topics, brokers, clients, users and the cluster, changed
while everything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from highwater.cli.completion import names
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


Topic = Annotated[str | None, typer.Option("--topic", help="of this topic", autocompletion=_topics)]
Broker = Annotated[int | None, typer.Option("--broker", min=0, help="of the broker with this id")]
BrokerDefaults = Annotated[bool, typer.Option("--broker-defaults", help="of all brokers")]
Client = Annotated[str | None, typer.Option("--client", help="of clients with this client id")]
ClientDefaults = Annotated[bool, typer.Option("--client-defaults", help="of clients that have nothing else")]
User = Annotated[str | None, typer.Option("--user", help="of this user; with --client of such clients as this user")]
UserDefaults = Annotated[bool, typer.Option("--user-defaults", help="of users who have nothing else")]
Cluster = Annotated[bool, typer.Option("--cluster", help="of the cluster: what all its services agree on")]


@app.command("describe")
def describe(
    topic: Topic = None,
    broker: Broker = None,
    broker_defaults: BrokerDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    user: User = None,
    user_defaults: UserDefaults = False,
    cluster: Cluster = False,
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
        asked = _resource(topic, broker, broker_defaults, client, client_defaults, user, user_defaults, cluster)
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
def set_(
    items: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="e.g. log.cleaner.threads=2")],
    topic: Topic = None,
    broker: Broker = None,
    broker_defaults: BrokerDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    user: User = None,
    user_defaults: UserDefaults = False,
    cluster: Cluster = False,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="only check: nothing is changed")] = False,
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
    resource = _resource(topic, broker, broker_defaults, client, client_defaults, user, user_defaults, cluster)
    with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS) as admin:
        admin.alter_configs(resource, changed, validate_only=validate_only)
    what = "could be set" if validate_only else "set"
    screen.print(f"{what} for {_named(resource)}: {escaped_text(' '.join(items))}")


@app.command("unset")
def unset(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="e.g. log.cleaner.threads")],
    topic: Topic = None,
    broker: Broker = None,
    broker_defaults: BrokerDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    user: User = None,
    user_defaults: UserDefaults = False,
    cluster: Cluster = False,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="only check: nothing is changed")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Give keys back: to the default of brokers, to what the service was started with, to its own default."""
    from highwater.client.blocking import Admin

    resource = _resource(topic, broker, broker_defaults, client, client_defaults, user, user_defaults, cluster)
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


def _resource(
    topic: str | None,
    broker: int | None,
    broker_defaults: bool,
    client: str | None,
    client_defaults: bool,
    user: str | None,
    user_defaults: bool,
    cluster: bool,
) -> ConfigResource:
    """The one resource that the options name."""
    from highwater.client import ConfigResource

    named = [
        *([ConfigResource.topic(topic)] if topic is not None else []),
        *([ConfigResource.broker(broker)] if broker is not None else []),
        *([ConfigResource.broker()] if broker_defaults else []),
        *([ConfigResource.cluster()] if cluster else []),
    ]
    any_user, any_client = user is not None or user_defaults, client is not None or client_defaults
    if any_user and any_client:
        named.append(ConfigResource.user_client(user, client))
    elif any_user:
        named.append(ConfigResource.user(user))
    elif any_client:
        named.append(ConfigResource.client(client))
    if len(named) != 1 or "" in (topic, client, user) or (user and user_defaults) or (client and client_defaults):
        raise typer.BadParameter(
            "say whose configuration it is: one of --topic, --broker, --broker-defaults, --cluster; or of clients and "
            "users, together or each alone, --client, --client-defaults, --user, --user-defaults"
        )
    return named[0]


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
