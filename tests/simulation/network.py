"""Who reaches whom, and how: calls that are lost, late or answered in vain, and streams that keep their order until
they break. Places are brokers' machines, controllers, etcd and the clients; within a place nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .scheduler import Future, Process, Scheduler

Find = Callable[[], Process | None]


class Weather(Protocol):
    """How bad the network is; a seed's own."""

    loss: float  # of a call, each way
    stream_break: float  # of a stream, for each message
    slow: float  # the part of messages that take up to `slow_ms`
    slow_ms: int


class Network:
    def __init__(self, scheduler: Scheduler, weather: Weather) -> None:
        self.scheduler = scheduler
        self.weather = weather
        self._cut: dict[tuple[int, int], int] = {}  # direction -> how many partitions of the network cut it
        self.dark: set[int] = set()  # machines that are off: they do not even refuse

    def cut(self, source: int, target: int) -> None:
        self._cut[source, target] = self._cut.get((source, target), 0) + 1

    def mend(self, source: int, target: int) -> None:
        left = self._cut.pop((source, target), 0) - 1
        if left > 0:
            self._cut[source, target] = left

    def mend_all(self) -> None:
        self._cut.clear()

    def reaches(self, source: int, target: int) -> bool:
        if self.dark and (source in self.dark or target in self.dark):
            return False
        return not self._cut or (source, target) not in self._cut

    def delay_ms(self, source: int, target: int) -> int:
        random = self.scheduler.random.random
        if source == target:
            return int(random() * 2)
        chance = random()
        weather = self.weather
        if chance < weather.slow:
            return int(weather.slow_ms * chance / weather.slow) + 1
        return 1 + int(chance * 4)

    def _lost(self, source: int, target: int) -> bool:
        if source == target:
            return False
        return not self.reaches(source, target) or self.scheduler.random.random() < self.weather.loss

    def call(self, client: Process, place: int, find: Find, method: str, *args: Any, timeout_ms: int) -> Future:
        """A unary call: `server.<method>(reply, *args)`. The future has the reply; None: refused, broken or out of
        time, and whether the server did it nobody knows. Calls overtake one another."""
        future = Future()
        source = client.place
        client.after(timeout_ms, future.set, None)
        if self._lost(source, place):
            return future

        def reply(value: Any) -> None:
            if not future.is_done and not self._lost(place, source):
                client.after(self.delay_ms(place, source), future.set, value)

        def arrive() -> None:
            server = find()
            if server is None or not server.alive:
                client.after(self.delay_ms(place, source), future.set, None)
                return
            server.ended.then(lambda _: client.after(1, future.set, None) if self.reaches(place, source) else None)
            server.run(getattr(server, method), reply, *args)

        self.scheduler.after(self.delay_ms(source, place), arrive)
        return future


class Stream:
    """Messages in order, both ways, until it breaks; then each end hears of it by itself, sooner or later, and what was
    under way may or may not arrive. `closed` of an end is called once."""

    def __init__(
        self,
        network: Network,
        client: Process,
        server: Process,
        client_closed: Callable[[], None],
        server_closed: Callable[[], None],
    ) -> None:
        self._network = network
        self._ends = (client, server)
        self._closed: list[Callable[[], None] | None] = [client_closed, server_closed]
        self._last_ms = [0, 0]
        self.lag_ms = 0  # what the server is sent from now on takes so much longer
        self.broken = False
        client.ended.then(lambda _: self._end_died(1))
        server.ended.then(lambda _: self._end_died(0))

    def to_server(self, run: Callable[..., Any], *args: Any) -> None:
        self._send(1, run, args)

    def to_client(self, run: Callable[..., Any], *args: Any) -> None:
        self._send(0, run, args)

    def _send(self, to: int, run: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.broken:
            return
        source, target = self._ends[1 - to].place, self._ends[to].place
        network = self._network
        scheduler = network.scheduler
        if source != target and scheduler.random.random() < network.weather.stream_break:
            self.break_(200)
            return
        lag_ms = self.lag_ms if to == 1 else 0
        at_ms = max(self._last_ms[to], scheduler.now_ms + network.delay_ms(source, target) + lag_ms)
        self._last_ms[to] = at_ms
        scheduler.after(at_ms - scheduler.now_ms, self._arrive, to, run, args)

    def _arrive(self, to: int, run: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self._closed[to] is None:
            return  # this end knows already that it is broken
        source, target = self._ends[1 - to].place, self._ends[to].place
        if not self._network.reaches(source, target):
            self.break_(2000)
            return
        self._ends[to].run(self._deliver, to, run, args)

    def _deliver(self, to: int, run: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self._closed[to] is not None:
            run(*args)

    def break_(self, noticed_within_ms: int) -> None:
        """The connection is gone; what arrives before an end has noticed is still taken."""
        if self.broken:
            return
        self.broken = True
        random = self._network.scheduler.random.random
        for end in (0, 1):
            self._network.scheduler.after(int(random() * noticed_within_ms), self._notice, end)

    def break_under_way(self) -> None:
        """The client hears at once that the connection is gone; all that it has sent reaches the server yet."""
        if self.broken:
            return
        self.broken = True
        scheduler = self._network.scheduler
        scheduler.after(0, self._notice, 0)
        scheduler.after(max(self._last_ms[1] - scheduler.now_ms, 0) + 1, self._notice, 1)

    def close(self, by: int) -> None:
        """The client (0) or the server (1) ends it; the other hears of it after what was sent before."""
        self._closed[by] = None
        if not self.broken:
            self.broken = True
            other = 1 - by
            source, target = self._ends[by].place, self._ends[other].place
            delay_ms = self._network.delay_ms(source, target)
            if not self._network.reaches(source, target):
                delay_ms += 1500
            at_ms = max(self._last_ms[other], self._network.scheduler.now_ms + delay_ms)
            self._network.scheduler.after(at_ms - self._network.scheduler.now_ms, self._notice, other)

    def _end_died(self, other: int) -> None:
        self.close(1 - other)

    def _notice(self, end: int) -> None:
        self._ends[end].run(self._call_closed, end)

    def _call_closed(self, end: int) -> None:
        closed, self._closed[end] = self._closed[end], None
        if closed is not None:
            closed()
