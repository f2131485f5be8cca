"""The settings of the fetcher."""

from __future__ import annotations

from pydantic import Field

from highwater.rpc.settings import Address, LogStorageUserSettings
from highwater.security.settings import InternalPrincipalSettings


class FetcherSettings(InternalPrincipalSettings, LogStorageUserSettings):
    replica_manager: Address
    num_replica_fetchers: int = Field(1, ge=1)
    replica_fetch_max_bytes: int = Field(1 << 20, ge=1)
    replica_fetch_response_max_bytes: int = Field(10 << 20, ge=1)
    replica_fetch_total_max_bytes: int = Field(128 << 20, ge=1)
    replica_fetch_wait_max_ms: int = Field(500, ge=1)
    replica_fetch_min_bytes: int = Field(1, ge=1)
    replica_fetch_backoff_ms: int = Field(1_000, ge=1)
    replica_socket_timeout_ms: int = Field(30_000, ge=1)
