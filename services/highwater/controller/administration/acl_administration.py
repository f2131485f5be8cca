"""ACLs, added, listed and removed at the active controller. Each broker's watch brings them to its authorizer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from highwater.controller.topics.topic_admin import Refusal
from highwater.errors import ErrorCode
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.acls import delete_acls, put_acls, read_acls
from highwater.metadata.store.etcd_errors import OutcomeUnknown, Refused, Unavailable
from highwater.metadata.store.store import Store
from highwater.security.acls import MAX_ACLS, Acl, AclFilter, in_order

_Answer = TypeVar("_Answer")


class AclAdministration:
    """Of one controller, whatever its terms: one change after the other, so that their number is known."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._one_at_a_time = asyncio.Lock()

    async def create(self, term: ControllerTerm, acls: Sequence[Acl]) -> Refusal | None:
        """Raises `ControllerDeposed`."""

        async def create() -> Refusal | None:
            known = (await read_acls(self._store, self._keys)).acls
            new = [acl for acl in dict.fromkeys(acls) if acl not in known]
            if (count := len(known) + len(new)) > MAX_ACLS:
                message = f"there would be {count} ACLs, {MAX_ACLS} are the most: take PREFIXED ones, or remove some"
                return Refusal(ErrorCode.POLICY_VIOLATION, message)
            await put_acls(self._store, self._keys, term, new)
            return None

        return await self._asked(create, "the ACLs may or may not have been added")

    async def describe(self, wanted: AclFilter) -> list[Acl] | Refusal:
        async def describe() -> list[Acl]:
            known = (await read_acls(self._store, self._keys)).acls
            return in_order(acl for acl in known if wanted.means(acl))

        return await self._asked(describe, "the ACLs are not known now")

    async def delete(self, term: ControllerTerm, filters: Sequence[AclFilter]) -> list[list[Acl]] | Refusal:
        """The ACLs that went by each filter. Raises `ControllerDeposed`."""

        async def delete() -> list[list[Acl]]:
            stored = await read_acls(self._store, self._keys)
            known = stored.acls
            found = []
            for each in filters:
                found.append(in_order(acl for acl in known if each.means(acl)))
                await asyncio.sleep(0)  # many filters over many ACLs
            gone = stored.keys_of({acl for each in found for acl in each})
            await delete_acls(self._store, self._keys, term, gone)
            return found

        return await self._asked(delete, "the ACLs may or may not have been removed")

    async def _asked(self, do: Callable[[], Awaitable[_Answer]], doubt: str) -> _Answer | Refusal:
        async with self._one_at_a_time:
            try:
                return await do()
            except (Unavailable, OutcomeUnknown, Refused) as error:
                return Refusal(ErrorCode.REQUEST_TIMED_OUT, f"{doubt}: {error}")
