"""Records of one partition that are given one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from highwater.client.consumer.consumer_record import ConsumerRecord
from highwater.client.consumer.fetch_buffer import FetchBuffer


class RecordRun:
    """The position goes with them: it stands behind the record that was given last, so that a commit keeps no more than
    was given. Ends early where the next one is not to be given any more, or a poll is due; `goes_on` tells the latter.

    May be iterated in another thread than the event loop's, while the application is in no other call.
    """

    def __init__(self, buffer: FetchBuffer, goes_on: Callable[[], bool]) -> None:
        """Raises as `FetchBuffer.current`."""
        self._buffer = buffer
        self._records, self._index = buffer.current()
        self._generation = buffer.generation
        self._goes_on = goes_on

    def __iter__(self) -> Iterator[ConsumerRecord]:
        buffer, records, generation, goes_on = self._buffer, self._records, self._generation, self._goes_on
        for index in range(self._index, len(records)):
            if buffer.generation != generation or buffer.paused or not buffer.hand_out(records, index):
                return
            yield records[index]
            if not goes_on():
                return
