"""The service while its logs are being opened: DescribeLogs tells how far that is, everything else has to wait."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from highwater.log_storage.serving.servicer import LogStorageServicer

_ALWAYS_ANSWERED = "DescribeLogs"


class Gate:
    """Stands in front of the servicer. What comes before `open` is refused as UNAVAILABLE, as a server that is not
    there yet would be: callers try again."""

    def __init__(self, servicer: LogStorageServicer) -> None:
        self._servicer = servicer
        self._is_open = False

    def open(self) -> None:
        self._is_open = True

    def __getattr__(self, name: str) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
        answer: Callable[[Any, Any], Coroutine[Any, Any, Any]] = getattr(self._servicer, name)
        if name == _ALWAYS_ANSWERED:
            return self._answer_anyway

        async def answer_if_open(request: Any, context: Any) -> Any:
            if not self._is_open:
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "log-storage is opening its logs: DescribeLogs tells how far it is"
                )
            return await answer(request, context)

        return answer_if_open

    async def _answer_anyway(self, request: Any, context: Any) -> Any:
        response = await self._servicer.DescribeLogs(request, context)
        response.opening = not self._is_open
        return response
