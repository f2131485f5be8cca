"""The service while its logs are being opened: DescribeLogs tells how far that is, everything else has to wait."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from highwater.log_storage.server.servicer import LogStorageServicer

_ALWAYS_ANSWERED = "DescribeLogs"


class Gate:
    """Stands in front of the servicer. What comes before `open` is refused as UNAVAILABLE, as a server that is not
    there yet would be: callers try again. DescribeLogs is answered from `found` on, when the directories are known."""

    def __init__(self) -> None:
        self._servicer: LogStorageServicer | None = None
        self._is_open = False

    def found(self, servicer: LogStorageServicer) -> None:
        self._servicer = servicer

    def open(self) -> None:
        self._is_open = True

    def __getattr__(self, name: str) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
        getattr(LogStorageServicer, name)  # raises `AttributeError` for what is no call of the service

        async def answer(request: Any, context: Any) -> Any:
            if self._servicer is None or not (self._is_open or name == _ALWAYS_ANSWERED):
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "log-storage is opening its logs: DescribeLogs tells how far it is"
                )
            response = await getattr(self._servicer, name)(request, context)
            if name == _ALWAYS_ANSWERED:
                response.opening = not self._is_open
            return response

        return answer
