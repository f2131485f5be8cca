"""A partition as the rules of replication let it go, at random: who leads, who follows, what is acknowledged, and what
of it each volume keeps. Of the volumes no more is told than an inventory has."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from highwater.kube.lost_etcd.inventory import Replica
from highwater.model.leader_epochs import NO_EPOCH, EpochEntry

TOPIC_ID = b"t" * 16
NOBODY = -1


@dataclass(frozen=True)
class Batch:
    epoch: int
    number: int


@dataclass
class Volume:
    log: list[Batch] = field(default_factory=list)
    fence: int = NO_EPOCH
    leads: bool = False  # the fence is one to lead
    led: int | None = NO_EPOCH  # None: its tail was lost since
    high_watermark: int = 0

    def lose_tail(self, end: int) -> None:
        del self.log[end:]
        self.high_watermark = min(self.high_watermark, end)

    @property
    def last_epoch(self) -> int:
        return self.log[-1].epoch if self.log else NO_EPOCH

    def inventory(self) -> Replica:
        epochs: list[EpochEntry] = []
        for offset, batch in enumerate(self.log):
            if not epochs or epochs[-1].leader_epoch != batch.epoch:
                epochs.append(EpochEntry(batch.epoch, offset))
        return Replica(
            "t",
            TOPIC_ID,
            0,
            log_end_offset=len(self.log),
            high_watermark=self.high_watermark,
            epochs=tuple(epochs),
            last_epoch=self.last_epoch,
            fence_epoch=self.fence,
            led_epoch=self.led,
        )


class Partition:
    """`brokers` of them, all in the ISR at first; elections are clean ones. `losses`: machines are lost, too, with what
    their volumes had not on disk, but fewer than the minimum before they are back in the ISR (RULES 7.5)."""

    def __init__(self, brokers: int, minimum: int, chance: random.Random, *, losses: bool = False) -> None:
        self.volumes = [Volume() for _ in range(brokers)]
        self.minimum = minimum
        self.acknowledged: dict[int, Batch] = {}  # by offset
        self.lost = set[int]()  # and not in the ISR again
        self.tail_lost = set[int]()  # of these: they have not registered since
        self._losses = losses
        self._chance = chance
        self._alive = set(range(brokers))
        self._leader, self._epoch = 0, 0
        self._isr, self._elr = set(range(brokers)), set[int]()
        self._acked: dict[int, int] = {}  # by follower: its log end, as it told the leader of this epoch
        self._epoch_start = 0
        self._numbers = 0
        self.lead()

    def step(self) -> None:
        moves = (
            [self.append] * 2
            + [self.fetch] * 12
            + [self.advance] * 6
            + [self.change_isr] * 8
            + [self.follow] * 10
            + [self.lead] * 4
            + [self.elect] * 2
            + [self.come_back] * 5
            + [self.fail] * 4
            + [self.checkpoint]
            + ([self.lose_tail] + [self.append] * 4 + [self.elect] * 4 if self._losses else [])
        )
        self._chance.choice(moves)()

    # What etcd holds

    @property
    def _leading(self) -> bool:
        volume = self.volumes[self._leader]
        return self._leader in self._alive and volume.leads and volume.fence == self._epoch

    def elect(self) -> None:
        """RULES 7.1, 7.3: the first live one of the ISR, or of elr; the dead leave."""
        if self._leading and self._chance.random() < 0.9:
            return
        for group in (self._isr, self._elr):
            live = sorted(group & self._alive)
            if not live:
                continue
            leader = self._chance.choice(live)
            staying = (self._isr & self._alive) | {leader} if group is self._isr else {leader}
            leaving = self._isr - staying
            self._elr = (self._elr | leaving if len(staying) < self.minimum else self._elr) - staying
            self._isr, self._leader = staying, leader
            break
        else:
            return
        self._epoch += 1
        self._acked = {}

    def change_isr(self) -> None:
        """RULES 5.6."""
        if not self._leading:
            return
        broker = self._chance.randrange(len(self.volumes))
        if broker == self._leader:
            return
        if broker in self._isr:
            if self._chance.random() < 0.5:
                return
            self._isr = self._isr - {broker}
            if len(self._isr) < self.minimum:
                self._elr = self._elr | {broker}
        elif self._acked.get(broker, -1) >= max(self.volumes[self._leader].high_watermark, self._epoch_start):
            self._isr = self._isr | {broker}
            self.lost.discard(broker)
            self._elr = self._elr - {broker}
        if len(self._isr) >= self.minimum:
            self._elr = set()

    # What brokers do

    def lead(self) -> None:
        volume = self.volumes[self._leader]
        if self._leader in self._alive and volume.fence < self._epoch:
            volume.fence, volume.leads, volume.led = self._epoch, True, self._epoch
            self._epoch_start = len(volume.log)

    def follow(self) -> None:
        broker = self._chance.randrange(len(self.volumes))
        volume = self.volumes[broker]
        if broker in self._alive and broker != self._leader and volume.fence < self._epoch:
            volume.fence, volume.leads = self._epoch, False

    def append(self) -> None:
        """Also by a leader that does not know that it is none any more."""
        broker = self._chance.choice(sorted(self._alive)) if self._alive else None
        if broker is not None and self.volumes[broker].leads:
            self._numbers += 1
            self.volumes[broker].log.append(Batch(self.volumes[broker].fence, self._numbers))

    def fetch(self) -> None:
        broker = self._chance.randrange(len(self.volumes))
        volume, leader = self.volumes[broker], self.volumes[self._leader]
        if not self._leading or broker not in self._alive or broker == self._leader or volume.fence != self._epoch:
            return
        same = 0
        while same < min(len(volume.log), len(leader.log)) and volume.log[same] == leader.log[same]:
            same += 1
        del volume.log[same:]
        volume.log += leader.log[same : same + self._chance.choice((0, 1, 2, 10))]
        self._acked[broker] = len(volume.log)

    def advance(self) -> None:
        """RULES 5.1, 5.2: the high watermark, and what it acknowledges."""
        if not self._leading or len(self._isr) < self.minimum or self._elr:
            return
        leader = self.volumes[self._leader]
        ends = [len(leader.log) if broker == self._leader else self._acked.get(broker, 0) for broker in self._isr]
        for offset in range(min(ends)):
            self.acknowledged.setdefault(offset, leader.log[offset])
        leader.high_watermark = max(leader.high_watermark, min(ends))

    def checkpoint(self) -> None:
        broker = self._chance.randrange(len(self.volumes))
        volume, leader = self.volumes[broker], self.volumes[self._leader]
        if self._leading and volume.fence == self._epoch and broker in self._acked:
            volume.high_watermark = max(volume.high_watermark, min(leader.high_watermark, len(volume.log)))

    def fail(self) -> None:
        broker = self._chance.randrange(len(self.volumes))
        self._alive.discard(broker)
        self._acked.pop(broker, None)

    def lose_tail(self) -> None:
        broker = self._chance.randrange(len(self.volumes))
        if len(self.lost | {broker}) < self.minimum:
            self.lost.add(broker)
            self.tail_lost.add(broker)
            self.volumes[broker].lose_tail(self._chance.randint(0, len(self.volumes[broker].log)))
            self._alive.discard(broker)
            self._acked.pop(broker, None)

    def come_back(self) -> None:
        """A leader that was started anew is no leader before it was elected again (RULES 3.5). Whoever has lost its
        tail leaves ISR and elr, be it the last member, and its fence does not say any more what it led (RULES 7.2)."""
        broker = self._chance.randrange(len(self.volumes))
        if broker not in self._alive:
            self._alive.add(broker)
            self.volumes[broker].leads = False
            if broker in self.tail_lost:
                self.tail_lost.discard(broker)
                self._isr, self._elr = self._isr - {broker}, self._elr - {broker}
                self.volumes[broker].led = None
                if broker == self._leader:  # whoever is elected next is elected without it
                    self._leader, self._epoch, self._acked = NOBODY, self._epoch + 1, {}
            if self._leader in (broker, NOBODY):
                self.elect()
