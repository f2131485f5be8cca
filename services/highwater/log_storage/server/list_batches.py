"""The headers of a log's batches, page by page, for the comparison of replicas; with their CRCs checked if asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.segment.damage import DamagedRange, check_segment
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.server.conversions import Answering
from highwater.log_storage.server.log_access import LogAccess
from highwater.records import BatchHeader
from highwater.v1 import common_pb2, log_storage_pb2

MAX_BATCHES = 5_000  # of a page
MAX_CHECKED_BYTES = 32 << 20  # of a page whose CRCs are checked
TRIES = 3  # of a page whose segments are replaced while it is read
MAX_DAMAGED = 100  # ranges of a page; what is beyond comes with the next one


@dataclass(slots=True)
class ListedBatches:
    headers: list[BatchHeader] = field(default_factory=list)
    damaged: list[DamagedRange] = field(default_factory=list)
    next_offset: int = 0
    checked_bytes: int = 0

    @property
    def full(self) -> bool:
        return self.checked_bytes >= MAX_CHECKED_BYTES or len(self.damaged) >= MAX_DAMAGED


def list_batches(
    segments: Sequence[Segment], position: int, offset: int, max_batches: int, *, check_crcs: bool
) -> ListedBatches:
    """A page of what ends at or above `offset`; the walk begins at `position` of the first segment. Raises
    `OSError`."""
    page = ListedBatches(next_offset=offset)
    for segment in segments:
        end_offset = segment.end_offset  # of now: what is appended while it is walked belongs to the next page
        for found in check_segment(segment, position, check_crcs=check_crcs):
            last_offset = found.last_offset if isinstance(found, DamagedRange) else found.header.last_offset
            if last_offset < offset:
                continue
            if isinstance(found, DamagedRange):
                page.damaged.append(replace(found, first_offset=max(found.first_offset, page.next_offset)))
            else:
                page.headers.append(found.header)
                page.checked_bytes += found.header.size_bytes if check_crcs else 0
            page.next_offset = last_offset + 1
            if len(page.headers) >= max_batches or page.full:
                return page
        page.next_offset = max(page.next_offset, end_offset)
        position = 0
    return page


class BatchListing:
    """The call that lists batches."""

    def __init__(self, access: LogAccess) -> None:
        self._access = access
        self._manager = access.manager
        self._incarnation = access.incarnation

    async def ListBatches(
        self, request: log_storage_pb2.LogListBatchesRequest, context: Any
    ) -> log_storage_pb2.LogListBatchesResponse:
        response = log_storage_pb2.LogListBatchesResponse(incarnation=self._incarnation)
        with Answering(response) as answering:
            hosted = answering.hosted = await self._access.idle(request.partition)
            log = hosted.online()
            limit = min(max(request.max_batches, 1), MAX_BATCHES)
            page = await self._page(hosted, log, max(request.offset, log.log_start_offset), limit, request.check_crcs)
            if not request.check_crcs:
                page.damaged += _between(log.damage.of(log.segments), request.offset, page)
            _fill(response.batches, page)
            if log.cleaned_to is not None:
                response.batches.cleaned_to = log.cleaned_to
        return response

    async def _page(self, hosted: HostedLog, log: Log, offset: int, limit: int, check_crcs: bool) -> ListedBatches:
        if offset >= log.log_end_offset:
            return ListedBatches(next_offset=log.log_end_offset)
        for _ in range(TRIES):
            offset = max(offset, log.log_start_offset)
            segments, position = log.reader.place_of(offset)
            cuts = [segment.cuts for segment in segments]
            try:
                page = await self._access.in_thread(_page_of, segments, position, offset, limit, check_crcs)
            except OSError as error:
                if _as_it_was(log, segments, cuts):
                    raise log.disk.refusal(error, str(hosted.directory)) from error
                continue
            if _as_it_was(log, segments, cuts):
                return page
        return ListedBatches(next_offset=offset)  # to be asked again


def _as_it_was(log: Log, segments: Sequence[Segment], cuts: Sequence[int]) -> bool:
    """Tells whether these were not cut, let go or replaced meanwhile: what was read under their names would be
    others'."""
    present = set(log.segments.copy())
    return all(segment in present for segment in segments) and cuts == [segment.cuts for segment in segments]


def _between(known: Sequence[DamagedRange], offset: int, page: ListedBatches) -> list[DamagedRange]:
    """The damage that scrubbing has found of the page's offsets, and the page itself has not."""
    seen = {damaged.first_offset for damaged in page.damaged}
    return [each for each in known if offset <= each.first_offset < page.next_offset and each.first_offset not in seen]


def _page_of(segments: Sequence[Segment], position: int, offset: int, limit: int, check_crcs: bool) -> ListedBatches:
    return list_batches(segments, position, offset, limit, check_crcs=check_crcs)


def _fill(target: common_pb2.BatchList, page: ListedBatches) -> None:
    target.base_offsets.extend(header.base_offset for header in page.headers)
    target.last_offsets.extend(header.last_offset for header in page.headers)
    target.leader_epochs.extend(header.partition_leader_epoch for header in page.headers)
    target.crcs.extend(header.crc for header in page.headers)
    target.next_offset = page.next_offset
    for found in page.damaged:
        target.damaged.add(first_offset=found.first_offset, last_offset=found.last_offset, problem=found.problem)
