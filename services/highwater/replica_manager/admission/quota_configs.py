"""The quotas among the dynamic configurations, handed on to what goes by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from highwater.configuration.entities import (
    BrokerEntity,
    ClientEntity,
    ConfigEntity,
    EntityKind,
    UserClientEntity,
    UserEntity,
)
from highwater.quotas.client_quotas import DEFAULT, Entity
from highwater.quotas.replication_quota import Rates, rates_of
from highwater.replica_manager.admission.throttling import Throttling

KINDS = (EntityKind.BROKERS, EntityKind.CLIENTS, EntityKind.USERS)


class QuotaConfigs:
    """A `ConfigListener` of `KINDS`. `replication` takes the rates of this broker whenever they may have changed: its
    own go before those of all brokers."""

    def __init__(self, broker_id: int, throttling: Throttling, replication: Callable[[Rates], object]) -> None:
        self._own = BrokerEntity(broker_id)
        self._throttling = throttling
        self._replication = replication
        self._brokers: dict[BrokerEntity, Mapping[str, str]] = {}

    def on_change(self, entity: ConfigEntity, config: Mapping[str, str]) -> None:
        if isinstance(entity, BrokerEntity):
            if entity.broker_id is None or entity == self._own:
                self._brokers[entity] = config
                merged = {**self._brokers.get(BrokerEntity(None), {}), **self._brokers.get(self._own, {})}
                self._replication(rates_of(merged))
        elif (quota_entity := _quota_entity(entity)) is not None:
            self._throttling.configure(quota_entity, config)


def _quota_entity(entity: ConfigEntity) -> Entity | None:
    match entity:
        case ClientEntity(client_id):
            return Entity(None, _named(client_id))
        case UserEntity(user):
            return Entity(_named(user))
        case UserClientEntity(user, client_id):
            return Entity(_named(user), _named(client_id))
        case _:
            return None


def _named(name: str | None) -> str:
    return DEFAULT if name is None else name
