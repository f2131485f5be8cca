"""Where a client finds a cluster: some of its brokers."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.client.exceptions import InvalidRequestError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def bootstrap_addresses(bootstrap: str | Sequence[str]) -> list[str]:
    """From `host:port`, `unix:/path`, a comma-separated string or a list of them. Raises `InvalidRequestError`."""
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [part.strip() for part in parts if part.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not address.startswith("unix:") and not (host and port.isdigit()):
            raise InvalidRequestError(f"bootstrap address {address!r} is neither host:port nor unix:/path")
    if not addresses:
        raise InvalidRequestError("no bootstrap address was given; name at least one broker as host:port")
    return addresses
