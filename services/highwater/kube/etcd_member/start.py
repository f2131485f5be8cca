"""The start of one etcd member: as what it was, as part of a new cluster, or in place of one that was lost.

- **Its volume has a log**: it starts as what it was. If a majority of the others answers, its peer URL there is put
  right first, should it have changed.
- **No log, and the others are a working cluster**: whatever that cluster names by this member's name or peer URL is
  removed and a member added in its place, under an id that was never used. Never the old id: it may have voted, and
  acknowledged entries, that the empty volume does not remember, and a majority that counts it would lose them.
- **No log, no working cluster**: a new one only with the word of all members that none has a log (`first_start`).

It is killed and started again at any of these steps, and goes on.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from highwater.errors import UserError
from highwater.kube.etcd_member.first_start import Answer, Heard, Step, next_step, what_is_missing
from highwater.kube.etcd_member.membership import Membership, NamedMember
from highwater.kube.etcd_member.peer_word import PeerTls, Word, answering, ask
from highwater.kube.etcd_member.settings import MemberSettings, from_command_line
from highwater.kube.etcd_member.volume import Held, MemberVolume, write_durably
from highwater.metadata.store.etcd_errors import StoreError, Unavailable
from highwater.telemetry.log import configure, get_logger

ROUND_S = 0.5
SAY_AGAIN_S = 30.0
CHANGED_URL_WAIT_S = 60.0  # an election takes seconds; where all members start at once there is none to wait for
GIVE_WAY_S = 60.0  # to a member that may never start

_log = get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with 1, and one sentence, where it cannot decide."""
    settings = from_command_line(arguments)
    configure(f"etcd member {settings.name}")
    try:
        asyncio.run(MemberStart(settings).run())
    except UserError as error:
        _log.error("%s", error)
        print(error, file=sys.stderr)
        raise SystemExit(1) from None


class MemberStart:
    """One run. `run` returns when etcd's file is written."""

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._volume = MemberVolume(settings.data_dir)
        self._peer_tls: PeerTls | None = settings.peer_tls()
        self._held = self._volume.held()
        self._told: dict[str, Held] = {}
        """What the others said of themselves when they asked."""
        self._said = ""
        self._said_s = 0.0

    async def run(self) -> None:
        """Raises `UserError`."""
        settings = self._settings
        _log.info("the volume at %s: %s", settings.data_dir, self._held.value)
        urls = [settings.of(settings.client_url, other) for other in settings.others]
        async with Membership(urls, settings.client_tls()).connected() as membership:
            if self._held is Held.STARTED:
                await self._start_as_it_was(membership)
            else:
                with answering(settings.of(settings.listen_peer_url), self._word, self._hear, self._peer_tls):
                    await self._start_without_a_log(membership)

    # With a log

    async def _start_as_it_was(self, membership: Membership) -> None:
        settings = self._settings
        note = self._volume.note()
        if note is not None and urlsplit(note.peer_url).scheme != urlsplit(settings.own_peer_url).scheme:
            raise UserError(
                f"this member was {note.peer_url} and is told to be {settings.own_peer_url}: the members of an etcd "
                "begin with TLS between them or without, and stay so, since the others do not understand the one that "
                "is restarted first. Put etcd.tls.memberSecretName back to what it was; nothing is lost"
            )
        urls = {settings.own_peer_url} | ({note.peer_url} if note else set())
        changed = urls - {settings.own_peer_url}
        members = await self._members_to_be_told(membership, CHANGED_URL_WAIT_S if changed else 0)
        if members is None and changed:
            _log.warning(
                "the peer URL was %s and is %s, and no majority answers to be told: if the others cannot find this "
                "member, make its old name resolve again until all of them have been restarted once",
                *changed,
                settings.own_peer_url,
            )
        if members is not None:
            await self._put_peer_url_right(membership, members, urls)
        if members is not None or not changed:
            self._record(Held.STARTED)  # else the note keeps the URL that the cluster knows
        # etcd heeds these only without a log. Should the log vanish before etcd starts, it asks these for the cluster,
        # finds nobody, and ends.
        self._write_config("existing", f"{settings.name}={settings.own_peer_url}")

    async def _members_to_be_told(self, membership: Membership, wait_s: float) -> list[NamedMember] | None:
        """None where no majority answers within `wait_s` and one attempt. Raises `UserError`."""
        deadline = time.monotonic() + wait_s
        while self._settings.others:
            try:
                return await membership.members()
            except Unavailable as error:
                if time.monotonic() >= deadline:
                    return None
                self._say(f"waiting for a majority, to tell it the new peer URL: {error}")
                await asyncio.sleep(ROUND_S)
            except StoreError as error:
                raise UserError(f"the other members refuse to say who is a member: {error}") from error
        return None

    async def _put_peer_url_right(self, membership: Membership, members: list[NamedMember], urls: set[str]) -> None:
        settings = self._settings
        mine = self._mine(members, urls)
        if not mine:
            raise UserError(
                f"the cluster has no member {settings.name}, though this volume has the log of one: it was removed, "
                "and cannot come back. Delete its volume (the PersistentVolumeClaim and the pod) and it joins anew"
            )
        named = [member for member in mine if member.name == settings.name] or mine
        if named[0].peer_urls != (settings.own_peer_url,):
            _log.info("the peer URL changes from %s to %s", ", ".join(named[0].peer_urls), settings.own_peer_url)
            try:
                await membership.update(named[0].id, settings.own_peer_url)
            except StoreError as error:
                raise UserError(f"this member's peer URL could not be changed, it is tried again: {error}") from error

    # Without a log

    async def _start_without_a_log(self, membership: Membership) -> None:
        deadline = time.monotonic() + self._settings.timeout_s
        while True:
            answers = await self._ask_all()
            at_work = any(not isinstance(answer, Held) for answer in answers.values())  # perhaps
            if at_work and await self._join(membership, deadline):
                return
            step = next_step(self._held, answers)
            if step is Step.PREPARE:
                _log.info("no member has a log: prepared to start a new cluster")
                self._record(Held.PREPARED)
                continue
            if step is Step.AGREE:
                self._start_anew()
                return
            missing = what_is_missing(self._held, answers)
            if time.monotonic() >= deadline:
                raise UserError(missing)
            self._say(f"waiting: {missing}")
            await asyncio.sleep(ROUND_S)

    def _start_anew(self) -> None:
        _log.info("all members are prepared: a new cluster")
        self._volume.clear()
        self._record(Held.AGREED)
        self._write_config("new", self._settings.initial_cluster)

    async def _ask_all(self) -> dict[str, Answer]:
        settings = self._settings
        own = self._word()
        asked = [ask(settings.of(settings.peer_url, other), own, self._peer_tls) for other in settings.others]
        answers: dict[str, Answer] = {}
        for other, answer in zip(settings.others, await asyncio.gather(*asked), strict=True):
            name = settings.name_of(other)
            if isinstance(answer, Word):
                same = (answer.name, answer.initial_cluster) == (name, settings.initial_cluster)
                answers[name] = answer.held if same else Heard.ANOTHER
            elif answer is Heard.SILENCE and self._told.get(name) in (Held.PREPARED, Held.AGREED):
                # It went on to start its etcd, knowing that this one is PREPARED; or it will say so again.
                answers[name] = self._told[name] if self._held is Held.PREPARED else answer
            else:
                answers[name] = answer
        return answers

    def _word(self) -> Word:
        return Word(self._settings.name, self._settings.initial_cluster, self._held)

    def _hear(self, word: Word) -> None:
        if word.initial_cluster == self._settings.initial_cluster:
            self._told[word.name] = word.held

    async def _join(self, membership: Membership, deadline: float) -> bool:
        """Tells whether etcd's file is written. Returns False where no majority answers. Raises `UserError` at the
        `deadline` (of `time.monotonic`)."""
        give_way_until = time.monotonic() + GIVE_WAY_S
        while True:
            answers = await self._ask_all()
            try:
                members = await membership.members()
            except StoreError:
                return self._held is Held.JOINING and await self._join_by_hearsay(membership)
            note = self._volume.note()
            mine = self._mine(members, {self._settings.own_peer_url} | ({note.peer_url} if note else set()))
            obstacle: object = None
            if self._held in (Held.PREPARED, Held.AGREED) and len(mine) == 1 and self._began_with_us(mine[0]):
                self._start_anew()
                return True
            if self._held is Held.JOINING and len(mine) == 1 and self._is_waiting_for_us(mine[0]):
                if await self._is_settled(membership, members):
                    self._write_joining_config(members)
                    return True
            elif (turn := self._whose_turn(members, mine, answers)) and time.monotonic() < give_way_until:
                obstacle = turn
            else:
                obstacle = await self._replace(membership, mine)
            if obstacle is not None:
                if time.monotonic() >= deadline:
                    raise UserError(f"a majority of the members answers, and the change of members waits: {obstacle}")
                self._say(f"waiting: {obstacle}")
                await asyncio.sleep(ROUND_S)

    def _whose_turn(
        self, members: list[NamedMember], mine: list[NamedMember], answers: Mapping[str, Answer]
    ) -> str | None:
        """Tells who goes first, if not this member. An etcd that joins compares the members in its file with those of
        the cluster: a change between its init container and its start would keep it from starting."""
        unstarted = [", ".join(member.peer_urls) for member in members if not member.name and member not in mine]
        if unstarted:
            return f"{', '.join(unstarted)} was added and is to start first"
        lower = [self._settings.name_of(other) for other in self._settings.others if other < self._settings.ordinal]
        joining = [name for name in lower if isinstance(answers[name], Held)]
        return f"{', '.join(joining)} joins first" if joining else None

    async def _is_settled(self, membership: Membership, members: list[NamedMember]) -> bool:
        """Tells whether no change is under way of somebody who has not yet seen this member's."""
        await asyncio.sleep(ROUND_S)
        try:
            return {member.id for member in await membership.members()} == {member.id for member in members}
        except StoreError:
            return False  # a cluster of one, and an added one: who may change nothing now

    async def _replace(self, membership: Membership, mine: list[NamedMember]) -> StoreError | None:
        """Removes one of those that the cluster names for this member, or adds one where there is none. The next list
        shows what came of it. Returns why it was refused."""
        try:
            if mine:
                # Its log is lost with its volume, so its id must not be used again: also where the cluster has not
                # heard of a start, as that may have been lost with the volume.
                _log.info("removing member %x (%s), which has no log here", mine[0].id, ", ".join(mine[0].peer_urls))
                await membership.remove(mine[0].id)
            else:
                if self._held is not Held.JOINING:
                    self._volume.clear(remains=self._held is Held.REMAINS)
                self._record(Held.JOINING)
                _log.info("adding a member with the peer URL %s", self._settings.own_peer_url)
                await membership.add(self._settings.own_peer_url)
        except StoreError as error:
            return error
        return None

    async def _join_by_hearsay(self, membership: Membership) -> bool:
        """A cluster of one has no majority from the moment on that a second is added until that is started. Whom it
        names under this peer URL is this volume's (`Held.JOINING`), however old the list."""
        try:
            members = await membership.members_by_hearsay()
        except StoreError:
            return False
        note = self._volume.note()
        mine = self._mine(members, {self._settings.own_peer_url})
        same_url = note is not None and note.peer_url == self._settings.own_peer_url
        if same_url and len(mine) == 1 and self._is_waiting_for_us(mine[0]):
            self._write_joining_config(members)
            return True
        return False

    def _began_with_us(self, member: NamedMember) -> bool:
        """Tells whether the others have begun the cluster that this volume is prepared for and wait for this member.
        etcd asks them the same before it starts with `new`."""
        return not member.client_urls and member.peer_urls == (self._settings.own_peer_url,)

    def _is_waiting_for_us(self, member: NamedMember) -> bool:
        return not member.name and member.peer_urls == (self._settings.own_peer_url,)

    def _mine(self, members: list[NamedMember], urls: set[str]) -> list[NamedMember]:
        return [member for member in members if member.name == self._settings.name or urls & set(member.peer_urls)]

    def _write_joining_config(self, members: list[NamedMember]) -> None:
        """etcd wants all members as the cluster names them; it compares their peer URLs."""
        self._volume.clear()
        cluster = []
        for member in members:
            mine = self._is_waiting_for_us(member)
            name = self._settings.name if mine else member.name or f"unstarted-{member.id:x}"
            cluster += [f"{name}={url}" for url in member.peer_urls]
        self._write_config("existing", ",".join(cluster))

    # Either way

    def _record(self, held: Held) -> None:
        """On the volume first: what is said to others holds after a crash, too."""
        note = self._volume.note()
        if note is None or (note.held, note.peer_url) != (held, self._settings.own_peer_url):
            self._volume.write(held, self._settings.own_peer_url)
        self._held = held

    def _write_config(self, state: str, initial_cluster: str) -> None:
        output = self._settings.output
        try:
            # JSON is YAML, too.
            write_durably(output, json.dumps(self._settings.config(state, initial_cluster), indent=2) + "\n")
        except OSError as error:
            raise UserError(f"{output} cannot be written: {error.strerror}") from error
        _log.info("%s is to start: initial-cluster-state %s, %s", self._settings.name, state, initial_cluster)

    def _say(self, message: str) -> None:
        """Logs it, if it is new or was last said a while ago."""
        now_s = time.monotonic()
        if message != self._said or now_s - self._said_s >= SAY_AGAIN_S:
            self._said, self._said_s = message, now_s
            _log.info("%s", message)
