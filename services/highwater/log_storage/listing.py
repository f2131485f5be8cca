"""The headers of a log's batches, page by page, for the comparison of replicas; with their CRCs checked if asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from highwater.log_storage.answers import fill_log, refuse
from highwater.log_storage.errors import LogError
from highwater.log_storage.hosted import HostedLog
from highwater.log_storage.log import Log
from highwater.log_storage.segment import Segment
from highwater.log_storage.servicer_core import ServicerCore
from highwater.records import HEADER_BYTES, BatchHeader, CorruptBatchError, read_header
from highwater.v1 import common_pb2, log_storage_pb2

MAX_BATCHES = 5_000  # of a page
MAX_CHECKED_BYTES = 32 << 20  # of a page whose CRCs are checked
MAX_DAMAGED = 100  # ranges of a page; what is beyond comes with the next one


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """What stands at these offsets is not what was written."""

    first_offset: int
    last_offset: int
    problem: str


@dataclass(slots=True)
class ListedBatches:
    headers: list[BatchHeader] = field(default_factory=list)
    damaged: list[DamagedRange] = field(default_factory=list)
    next_offset: int = 0
    checked_bytes: int = 0

    @property
    def full(self) -> bool:
        return self.checked_bytes >= MAX_CHECKED_BYTES or len(self.damaged) >= MAX_DAMAGED


def walk_checked(
    segment: Segment, position: int, expected: int, *, checked: bool
) -> Iterator[BatchHeader | DamagedRange]:
    """The batches of a segment from `position` on, where offset `expected` or a later one stands, and what is damaged
    between them. A damaged batch whose header can still be believed is passed over; else the rest of the segment is
    damaged. Raises `OSError`."""
    end = segment.size_bytes
    while position < end:
        try:
            for _, header in segment.headers(position, checked=checked):
                yield header
                expected = header.next_offset
                position += header.size_bytes
            return
        except CorruptBatchError as error:
            header_there = _header_at(segment, error.position, end)
            plausible = (
                header_there is not None
                and expected <= header_there.base_offset
                and header_there.next_offset <= segment.end_offset
            )
            if header_there is None or not plausible:
                yield DamagedRange(expected, segment.end_offset - 1, f"{segment.path}, {error}")
                return
            yield DamagedRange(header_there.base_offset, header_there.last_offset, f"{segment.path}, {error}")
            expected = header_there.next_offset
            position = error.position + header_there.size_bytes


def _header_at(segment: Segment, position: int, end: int) -> BatchHeader | None:
    try:
        header = read_header(segment.peek(position, HEADER_BYTES))
    except CorruptBatchError:
        return None
    return header if position + header.size_bytes <= end else None


def list_batches(
    segments: Sequence[Segment], position: int, offset: int, max_batches: int, *, checked: bool
) -> ListedBatches:
    """A page of what ends at or above `offset`; the walk begins at `position` of the first segment. Raises
    `OSError`."""
    page = ListedBatches(next_offset=offset)
    for segment in segments:
        expected = page.next_offset if position else segment.base_offset
        for found in walk_checked(segment, position, expected, checked=checked):
            if found.last_offset < offset:
                continue
            if isinstance(found, DamagedRange):
                page.damaged.append(found)
            else:
                page.headers.append(found)
                page.checked_bytes += found.size_bytes if checked else 0
            page.next_offset = found.last_offset + 1
            if len(page.headers) >= max_batches or page.full:
                return page
        page.next_offset = max(page.next_offset, segment.end_offset)
        position = 0
    return page


class Listing(ServicerCore):
    async def ListBatches(
        self, request: log_storage_pb2.LogListBatchesRequest, context: Any
    ) -> log_storage_pb2.LogListBatchesResponse:
        response = log_storage_pb2.LogListBatchesResponse(incarnation=self._incarnation)
        hosted: HostedLog | None = None
        try:
            hosted = await self._idle(request.partition)
            log = hosted.online()
            limit = min(max(request.max_batches, 1), MAX_BATCHES)
            page = await self._page(hosted, log, max(request.offset, log.log_start_offset), limit, request.check_crcs)
            _fill(response.batches, page)
            if log.cleaned_to is not None:
                response.batches.cleaned_to = log.cleaned_to
        except LogError as error:
            refuse(response, error)
        if hosted is not None:
            fill_log(response.log, hosted)
        return response

    async def _page(self, hosted: HostedLog, log: Log, offset: int, limit: int, checked: bool) -> ListedBatches:
        if offset >= log.log_end_offset:
            return ListedBatches(next_offset=log.log_end_offset)
        segments, position = log.place_of(offset)
        try:
            return await self._in_thread(_page_of, segments, position, offset, limit, checked)
        except OSError as error:
            if segments[0] not in log.segments:  # let go meanwhile, or put another in its place: to be asked again
                return ListedBatches(next_offset=max(offset, log.log_start_offset))
            raise log.disk.refusal(error, str(hosted.directory)) from error


def _page_of(segments: Sequence[Segment], position: int, offset: int, limit: int, checked: bool) -> ListedBatches:
    return list_batches(segments, position, offset, limit, checked=checked)


def _fill(target: common_pb2.BatchList, page: ListedBatches) -> None:
    target.base_offsets.extend(header.base_offset for header in page.headers)
    target.last_offsets.extend(header.last_offset for header in page.headers)
    target.leader_epochs.extend(header.partition_leader_epoch for header in page.headers)
    target.crcs.extend(header.crc for header in page.headers)
    target.next_offset = page.next_offset
    for found in page.damaged:
        target.damaged.add(first_offset=found.first_offset, last_offset=found.last_offset, problem=found.problem)
