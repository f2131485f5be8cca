"""The settings of the controller."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from highwater.rpc.listeners import speaks_tls, with_tls, without_tls
from highwater.rpc.settings import Address, ReplicationSettings
from highwater.security.settings import InternalPrincipalSettings


class ControllerSettings(InternalPrincipalSettings, ReplicationSettings):
    controller_id: int = Field(ge=0)
    advertised_listener: Address
    num_partitions: int = Field(1, ge=1)
    default_replication_factor: int = Field(1, ge=1)
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = Field(300, ge=1)
    leader_imbalance_per_broker_percentage: int = Field(10, ge=0)
    controller_session_timeout_ms: int = Field(3_000, ge=1_000)

    @field_validator("advertised_listener")
    @classmethod
    def _as_it_listens(cls, value: str, info: ValidationInfo) -> str:
        listen = info.data.get("listen", [])  # none: that is what is wrong
        if listen and all(speaks_tls(value) != speaks_tls(address) for address in listen):
            instead = without_tls(value) if speaks_tls(value) else with_tls(value)
            raise ValueError(f"{value} is not how this controller listens: write {instead}, or change listen")
        return value
