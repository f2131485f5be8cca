"""`Producer`, `Consumer`, `Scan` and `Admin` for plain code: the async ones, run on a background thread's event loop.

    with Producer("127.0.0.1:9092") as producer:
        producer.send("events", b"value", key=b"key")
        producer.flush()

Same names, same arguments. Nothing is created before the first call, so a process may fork before it (Spark executors,
multiprocessing); a client that was used does not survive a fork, see `highwater.rpc.process.forking`. Each client
may be shared by threads. A name is imported when it is first used, as in `highwater.client`.

May import every other room.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from highwater.client.blocking.admin import Admin
    from highwater.client.blocking.consumer import Consumer
    from highwater.client.blocking.producer import PendingDelivery, Producer
    from highwater.client.blocking.scan import Scan

__all__ = ["Admin", "Consumer", "PendingDelivery", "Producer", "Scan"]

_MODULES = {
    "Admin": "admin",
    "Consumer": "consumer",
    "PendingDelivery": "producer",
    "Producer": "producer",
    "Scan": "scan",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
