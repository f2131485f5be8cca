"""Known bugs, put back into the production code one at a time. The simulation must find each (`test_mutants.py`).

The patches are in `mistakes.py` and `groups/mutants.py`. `bias` turns the seeds' settings towards what the mistake
needs, so that it is met within few of them; the code as it is must pass the very same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from . import biases, mistakes
from .groups import mutants as groups
from .run import Result, run_seed
from .settings import Settings, drain_alone, draw
from .world import STEPS

Patches = Callable[[], list[Any]]


@dataclass(frozen=True)
class Mutant:
    name: str
    rule: str
    patches: Patches
    caught_by: tuple[str, ...]  # the beginnings of the invariants that may catch it
    bias: Callable[[Settings], None]

    def settings(self, seed: int) -> Settings:
        settings = draw(Random(seed * 7919 + 1))
        settings.unclean = False
        settings.groups = None
        self.bias(settings)
        return settings

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for change in self.patches():
                stack.enter_context(change)
            yield

    def run(self, seed: int, verbose: bool = False) -> Result:
        with self.applied():
            return run_seed(seed, STEPS, verbose, self.settings(seed), f' --mutant "{self.name}"')

    def run_without(self, seed: int, verbose: bool = False) -> Result:
        """The same seed, settings and all, of the code as it is."""
        return run_seed(seed, STEPS, verbose, self.settings(seed), f' --bias "{self.name}"')


MUTANTS = (
    Mutant("HW from the shrunken ISR before etcd agreed", "5.1", mistakes.shrunken, ("1", "2"), biases.busy),
    Mutant(
        "the union dropped after a CAS of unknown outcome",
        "2.4",
        mistakes.union_dropped,
        ("1", "2"),
        biases.unknown_writes,
    ),
    Mutant(
        "truncation to HW instead of by epoch",
        "4.3",
        mistakes.truncation_to_high_watermark,
        ("1", "2", "4"),
        biases.elections,
    ),
    Mutant("no fence", "3.1", mistakes.no_fence, ("9", "5", "4"), biases.zombies),
    Mutant("a fence that forgets on restart", "3.1", mistakes.forgetful_fence, ("5", "9"), biases.zombies),
    Mutant(
        "a fetch believed without its leader epoch and last epoch",
        "4.2",
        mistakes.credulous,
        ("1", "2", "4"),
        biases.elections,
    ),
    Mutant(
        "acknowledgement by fetch offset", "4.5", mistakes.acknowledged_by_fetch_offset, ("1", "2"), biases.pipelined
    ),
    Mutant("an old broker epoch let into the ISR", "2.3", mistakes.old_broker_epoch, ("1", "2"), biases.lost_tails),
    Mutant(
        "a waiting produce that survives an interrupted leadership",
        "5.4",
        mistakes.surviving_produce,
        ("1",),
        biases.handed_back,
    ),
    Mutant("an acked offset kept across a truncation", "4.1", mistakes.kept_acked_offset, ("1", "2"), biases.elections),
    Mutant(
        "leading again under the old epoch after a restart",
        "3.5",
        mistakes.old_epoch_again,
        ("5", "9"),
        biases.restarts,
    ),
    Mutant("a damaged log cut while it counts", "7.6", mistakes.counting_and_dropped, ("1", "2"), biases.damaged),
    Mutant(
        "a replica back in the ISR before it has caught up", "5.6", mistakes.back_too_soon, ("1", "2"), biases.damaged
    ),
    Mutant(
        "a campaign that ends where etcd refuses",
        "1.2",
        mistakes.campaign_ended_by_a_refusal,
        ("liveness",),
        biases.full_etcd,
    ),
    Mutant(
        "a configuration found by re-listing told to nobody",
        "8.4",
        mistakes.relisted_in_silence,
        ("liveness",),
        biases.lost_watches,
    ),
    Mutant(
        "metadata lost with an unanswered request", "8.10", mistakes.metadata_lost, ("liveness",), biases.lost_messages
    ),
    Mutant(
        "a failed disk believed under the same boot", "7.2", mistakes.believed_by_its_boot, ("1", "2"), biases.disks
    ),
    Mutant("recovery that cuts without a word", "7.2", mistakes.believed_as_recovered, ("1", "2"), biases.disks),
    Mutant("a topic that flushes less often spoken for", "7.2", mistakes.spoken_for, ("1", "2"), biases.overridden),
    Mutant(
        "the old lineage's high watermark kept", "7.4", mistakes.old_lineage, ("1", "2"), biases.unclean_across_gaps
    ),
    Mutant(
        "a cut replica counted by what it had before",
        "7.6",
        mistakes.counted_by_what_was_cut,
        ("1", "2"),
        biases.damaged,
    ),
    Mutant(
        "a damaged log taken up by a fence that was under way",
        "7.6",
        mistakes.taken_up_by_a_fence_under_way,
        ("1", "2"),
        biases.damaged_while_fenced,
    ),
    Mutant(
        "a leader that holds on to what it cannot read",
        "7.6",
        mistakes.led_by_the_damaged,
        ("liveness",),
        biases.damaged,
    ),
    Mutant("an end that is kept over a new registration", "4.1", mistakes.end_kept, ("1", "2"), biases.cut_unheard),
    Mutant(
        "an append parked behind one that landed late",
        "3.4",
        mistakes.parked,
        ("produce (parked)",),
        biases.late_appends,
    ),
    Mutant(
        "a leaving broker taken out of an ISR that needs it", "7.8", mistakes.let_go_all, ("shutdown",), drain_alone
    ),
    Mutant(
        "a broker that may stop although an ISR needs it", "7.8", mistakes.released_at_once, ("shutdown",), drain_alone
    ),
    Mutant("a member whose lag is not looked at", "5.6", mistakes.never_due, ("tick (due)",), biases.busy),
    Mutant("a place answered before its request", "4.10", mistakes.answered_too_early, ("liveness",), biases.pipelined),
    Mutant(
        "growth that no session hears of", "4.10", mistakes.grown_in_silence, ("liveness", "produce"), biases.sessions
    ),
    Mutant(
        "a silent member that has to name again", "4.11", mistakes.heard_by_name_alone, ("liveness",), biases.sessions
    ),
    Mutant(
        "a partition followed no more that no fetcher hears of",
        "4.12",
        mistakes.removals_untold,
        ("following",),
        biases.elections,
    ),
    Mutant("changes told across a registration", "4.12", mistakes.carried_over, ("following",), biases.restarts),
    Mutant(
        "a leader that holds back what commits wait for",
        "4.14",
        mistakes.awaited_and_throttled,
        ("throttle (in sync)",),
        biases.throttled,
    ),
    Mutant(
        "a member of the ISR that throttles itself",
        "4.14",
        mistakes.throttles_itself_in_sync,
        ("throttle (in sync)",),
        biases.throttled,
    ),
    Mutant(
        "a throttled replica that is not looked at again",
        "4.14",
        mistakes.held_for_ever,
        ("throttle (held)", "liveness"),
        biases.throttled,
    ),
    Mutant("a throttle's debt that is never paid", "4.14", mistakes.never_paid, ("liveness",), biases.throttled),
    Mutant("a throttle that charges nothing", "4.14", mistakes.never_charged, ("throttle (rate)",), biases.throttled),
    Mutant(
        "a leader deaf to what duplicates tell",
        "3.4",
        mistakes.deaf_to_duplicates,
        ("produce (log end)",),
        biases.late_appends,
    ),
    Mutant("a partition given before it is released", "11.4", groups.given_before_released, ("11.4",), groups.calm),
    Mutant("a stream's end taken for a leave", "11.5", groups.break_is_leave, ("11.4",), groups.calm),
    Mutant("a commit of one who was fenced", "11.6", groups.commit_of_the_fenced, ("11.6", "10"), groups.overstaying),
    Mutant("an answer before its records are committed", "11.2", groups.answered_before_commit, ("11.2",), groups.calm),
    Mutant("a shard that serves on after a failed append", "11.2", groups.serves_on, ("11.2",), groups.failing),
    Mutant(
        "a shard that serves what may be taken back",
        "11.2",
        groups.served_too_early,
        ("11.2",),
        groups.moving,
    ),
    Mutant("offsets expired in a rebalance", "11.10", groups.expired_in_a_rebalance, ("10",), groups.idle),
    Mutant("offsets that go with a topic of their name", "11.11", groups.removed_by_name, ("10",), groups.remade),
    Mutant("an unknown topic's offset not told", "11.6", groups.told_by_name, ("10",), groups.remade),
    Mutant("an unknown topic's offset overwritten", "11.6", groups.overwritten_by_name, ("10",), groups.remade),
    Mutant("offsets of unknown topics kept", "11.11", groups.unknown_kept, ("11.11", "liveness"), groups.remade),
    Mutant("a group that is open while it is deleted", "11.11", groups.open_while_deleted, ("11.11",), groups.deleted),
    Mutant("offsets reset while they are loaded", "11.12", groups.reset_while_loading, ("10",), groups.loading),
    Mutant("compaction that drops a key's last record", "11.1", groups.last_dropped, ("11.1", "10"), groups.compacting),
    Mutant("tombstones that go at once", "11.1", groups.tombstones_at_once, ("compaction",), groups.compacting),
    Mutant("a sign of life that two coordinators hear", "11.12", groups.heard_by_two, ("11.4",), groups.isolated),
)

__all__ = ["MUTANTS", "Mutant"]
