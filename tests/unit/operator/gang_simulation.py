"""The line of `gated` over random clusters and arrivals, in simulated time, beside schedulers that know all durations.

    python -m tests.unit.operator.gang_simulation [--sequences 10000] [--seed 0]

**What is simulated.** A cluster of 2 to 12 nodes of 4 or 8 GPUs in 1 to 3 racks. 8 to 40 gangs of 1 to 4 pods of 1 GPU
to a whole node, more small ones than large, some bound to one rack, some of higher priority, some larger than the
cluster. They arrive at a load of half to one and a half of what the cluster can do, and run for a log-normal time of
2.5 hours in the median, 4 hours in the mean, two days at most. A gang runs from its release until its time is over; the
real `decide` is called at every arrival and end, and sees no duration.

**What must hold**, in every sequence: no node ever holds more than it has; each gang that fits the empty cluster runs,
and no other does; a gang within one rack is within one; and the head of the line, from the time it becomes head until
it starts or a gang of higher priority comes before it, waits no longer than its patience and the longest of the gangs
that ran when that was over.

**The oracle** knows every duration in advance. It is the best, sequence by sequence, of five schedules: EASY
backfilling (Lifka 1995) in our order with exact durations, which promises what we promise; and four that fill the
cluster greedily at each event and promise nobody anything: in order of arrival, longest first, widest first, and most
GPU-seconds first. None of them preempts, nor do we. They place pods on nodes by the code under test, so that they
differ in order alone.

**Idle time** is GPU-seconds without a gang from the first arrival to the last end: capacity x span - work. Work is the
same in all schedules. The floor is the idle time of a span that no schedule can beat: the last time by which all GPUs
can do the work of all gangs that come after some moment, or by which a single gang can be done.
"""

import argparse
import heapq
import math
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from grpo_operator.gang.cluster import HOSTNAME, MILLI, Cluster, Needs, Node, Use
from grpo_operator.gang.line import PATIENCE_SECONDS, WaitingGang, decide
from grpo_operator.gang.room import Room
from grpo_operator.reasons import Reason

GPU = "nvidia.com/gpu"
RACK = "rack"
DAY = 86_400.0
MEDIAN_SECONDS = 9000.0
"""Of a run: two hours and a half."""
LIMIT = 0.10
"""Idle time beyond the oracle's that is allowed, over all sequences."""


@dataclass(frozen=True)
class Arrival:
    gang: WaitingGang
    time: float
    seconds: float

    @property
    def name(self) -> str:
        return self.gang.key[1]

    @property
    def gpus(self) -> int:
        return self.gang.pods * self.gang.needs.requests[GPU] // MILLI


@dataclass
class Run:
    """What became of the gangs of one sequence."""

    starts: dict[str, float] = field(default_factory=dict)
    end: float = 0.0
    too_large: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sequence:
    nodes: tuple[Node, ...]
    arrivals: tuple[Arrival, ...]

    @property
    def gpus(self) -> int:
        return sum(node.allocatable[GPU] for node in self.nodes) // MILLI

    @cached_property
    def fitting(self) -> list[Arrival]:
        """Those that the empty cluster has room for, counted without the code under test."""
        return [one for one in self.arrivals if self._fits(one.gang)]

    def _fits(self, gang: WaitingGang) -> bool:
        rooms: dict[str, int] = {}
        for node in self.nodes:
            domain = node.labels[RACK] if gang.topology_key and gang.required else ""
            rooms[domain] = rooms.get(domain, 0) + node.allocatable[GPU] // gang.needs.requests[GPU]
        return max(rooms.values()) >= gang.pods

    def idle(self, end: float) -> float:
        work = sum(one.gpus * one.seconds for one in self.fitting)
        return self.gpus * (end - min(one.time for one in self.fitting)) - work

    def floor(self) -> float:
        """A time before which no schedule can be done."""
        runs = self.fitting
        spans = [
            start + sum(one.gpus * one.seconds for one in runs if one.time >= start) / self.gpus
            for start in {one.time for one in runs}
        ]
        return max(*spans, *(one.time + one.seconds for one in runs))


def make_sequence(chance: random.Random) -> Sequence:
    racks, per_node = chance.randint(1, 3), chance.choice([4, 8])
    nodes = tuple(
        Node(
            name=f"node-{number:02}",
            labels={HOSTNAME: f"node-{number:02}", RACK: f"rack-{number % racks}"},
            allocatable={GPU: per_node * MILLI, "pods": 110 * MILLI},
        )
        for number in range(chance.randint(2, 12))
    )
    drawn = [_draw(chance, number, per_node) for number in range(chance.randint(8, 40))]
    work = sum(gang.pods * gang.needs.requests[GPU] / MILLI * seconds for gang, seconds in drawn)
    span = work / (per_node * len(nodes)) / chance.uniform(0.5, 1.5)
    times = sorted(chance.uniform(0, span) for _ in drawn)
    return Sequence(
        nodes,
        tuple(
            Arrival(replace(gang, since=f"{number:04}"), time, seconds)
            for number, ((gang, seconds), time) in enumerate(zip(drawn, times, strict=True))
        ),
    )


def _draw(chance: random.Random, number: int, per_node: int) -> tuple[WaitingGang, float]:
    pods = chance.choice([1, 1, 1, 2, 2, 3, 4])
    gpus = per_node if pods > 1 and chance.random() < 0.6 else chance.choice([1, 1, 2, 4, per_node])
    gang = WaitingGang(
        key=("team", f"job-{number:04}"),
        pods=pods,
        needs=Needs({GPU: gpus * MILLI, "pods": MILLI}),
        priority=chance.choice([0, 0, 0, 0, 1]),
        preempts=False,
        topology_key=RACK if chance.random() < 0.25 else None,
        required=chance.random() < 0.5,
    )
    return gang, min(2 * DAY, chance.lognormvariate(math.log(MEDIAN_SECONDS), 1.0))


Choose = Callable[[Cluster, list[Arrival], float, dict[str, float]], dict[str, list[Node]]]
"""(cluster, those that wait, now, end by name of those that run) -> nodes by name of those that start."""


def simulate(sequence: Sequence, choose: Choose, run: Run | None = None) -> Run:
    run = run or Run()
    coming = list(sequence.arrivals)
    waiting: list[Arrival] = []
    ends: list[tuple[float, str]] = []
    uses: dict[str, list[Use]] = {}
    while coming or ends:
        now = min([*(one.time for one in coming[:1]), *(end for end, _ in ends[:1])])
        while ends and ends[0][0] <= now:
            del uses[heapq.heappop(ends)[1]]
        while coming and coming[0].time <= now:
            waiting.append(coming.pop(0))
        cluster = Cluster(sequence.nodes, tuple(use for held in uses.values() for use in held))
        started = choose(cluster, waiting, now, {name: end for end, name in ends})
        for one in [one for one in waiting if one.name in started]:
            nodes = started[one.name]
            waiting.remove(one)
            run.starts[one.name], run.end = now, max(run.end, now + one.seconds)
            heapq.heappush(ends, (now + one.seconds, one.name))
            uses[one.name] = [Use(node.name, one.gang.needs.requests, one.gang.priority, started=now) for node in nodes]
            _check_placement(run, one, nodes)
        _check_room(run, sequence, uses)
    return run


def _check_placement(run: Run, one: Arrival, nodes: list[Node]) -> None:
    if len(nodes) != one.gang.pods:
        run.broken.append(f"{one.name}: {len(nodes)} of {one.gang.pods} pods are placed")
    if one.gang.topology_key and one.gang.required and len({node.labels[RACK] for node in nodes}) != 1:
        run.broken.append(f"{one.name}: is not within one rack")


def _check_room(run: Run, sequence: Sequence, uses: dict[str, list[Use]]) -> None:
    held = dict.fromkeys((node.name for node in sequence.nodes), 0)
    for use in (use for of in uses.values() for use in of):
        held[use.node] += use.requests[GPU]
    for node in sequence.nodes:
        if held[node.name] > node.allocatable[GPU]:
            run.broken.append(f"{node.name} holds {held[node.name]} of {node.allocatable[GPU]}")


class Line:
    """The code under test, with the promise of `line` held against what it does."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._keeps_from: dict[str, float] = {}
        self._head: str | None = None
        self._patient_until: dict[str, float] = {}
        self._bound: float | None = None

    def __call__(
        self, cluster: Cluster, waiting: list[Arrival], now: float, ends: dict[str, float]
    ) -> dict[str, list[Node]]:
        gangs = [replace(one.gang, keeps_from=self._keeps_from.get(one.name)) for one in waiting]
        made = decide(cluster, gangs, now)
        self._keeps_from |= {name: time for (_, name), time in made.heads.items()}
        self._run.too_large |= {
            name for (_, name), (reason, _) in made.told.items() if reason == Reason.LARGER_THAN_CLUSTER
        }
        released = {name: nodes for (_, name), nodes in made.release.items()}
        left = [one.gang for one in waiting if one.gang.key in made.told and one.name not in self._run.too_large]
        head = min(left, key=lambda one: (-one.priority, one.since), default=None)
        before = [one for one in waiting if one.name in released and head and one.gang.priority > head.priority]
        if head is None or head.key[1] != self._head or before:
            self._head, self._bound = head.key[1] if head else None, None
        if head is None:
            return released
        if self._bound is None and now >= self._patient_until.setdefault(head.key[1], now + PATIENCE_SECONDS):
            # Nothing has started since it was over, but for what went before it now.
            self._bound = max([now, *ends.values(), *(now + one.seconds for one in before)])
        elif self._bound is not None and now > self._bound - 1e-6:
            self._run.broken.append(f"{self._head}: waits at {now:.0f}, and its bound was {self._bound:.0f}")
        return released


def greedy(order: Callable[[Arrival], float]) -> Choose:
    """Starts whatever fits, in an order."""

    def choose(cluster: Cluster, waiting: list[Arrival], now: float, ends: dict[str, float]) -> dict[str, list[Node]]:
        room, started = Room(cluster), {}
        for one in sorted(waiting, key=order):
            if (nodes := room.place(one.gang)) is not None:
                room.take(nodes, one.gang.needs.requests)
                started[one.name] = nodes
        return started

    return choose


Held = dict[str, tuple[list[Node], Arrival]]


class Easy:
    """EASY backfilling with exact durations: what starts behind the head must leave the head's start where it is."""

    def __init__(self, sequence: Sequence) -> None:
        self._fits = {one.name for one in sequence.fitting}
        self._held: Held = {}

    def __call__(
        self, cluster: Cluster, waiting: list[Arrival], now: float, ends: dict[str, float]
    ) -> dict[str, list[Node]]:
        ends, started, head, start = dict(ends), {}, None, now
        self._held = {name: self._held[name] for name in ends}
        line = [one for one in waiting if one.name in self._fits]
        for one in sorted(line, key=lambda one: (-one.gang.priority, one.gang.since)):
            nodes = _room(cluster.nodes, self._held).place(one.gang)
            if nodes is None:
                if head is None:
                    head, start = one, self._start(cluster.nodes, self._held, ends, one)
                continue
            trial = {**self._held, one.name: (nodes, one)}
            later = {**ends, one.name: now + one.seconds}
            if head is not None and self._start(cluster.nodes, trial, later, head) > start + 1e-9:
                continue
            self._held, ends, started[one.name] = trial, later, nodes
        return started

    def _start(self, nodes: tuple[Node, ...], held: Held, ends: dict[str, float], one: Arrival) -> float:
        """When it can start, if nothing else does."""
        held = dict(held)
        for name in sorted(ends, key=lambda name: ends[name]):
            del held[name]
            if _room(nodes, held).place(one.gang):
                return ends[name]
        raise AssertionError(f"{one.name} does not fit the empty cluster")


def _room(nodes: tuple[Node, ...], held: Held) -> Room:
    uses = (Use(node.name, one.gang.needs.requests) for on, one in held.values() for node in on)
    return Room(Cluster(nodes, tuple(uses)))


ORDERS: dict[str, Callable[[Arrival], float]] = {
    "in order of arrival": lambda one: one.time,
    "longest first": lambda one: -one.seconds,
    "widest first": lambda one: -one.gpus,
    "most work first": lambda one: -one.gpus * one.seconds,
}


@dataclass(frozen=True)
class Result:
    idle: float
    """GPU-seconds, as the next three."""
    oracle: float
    easy: float
    floor: float
    wait: float
    """Mean seconds from arrival to start."""
    easy_wait: float
    broken: tuple[str, ...]


def compare(sequence: Sequence) -> Result | None:
    """The line beside the oracle; None where no gang of the sequence fits the cluster."""
    fitting = sequence.fitting
    if not fitting:
        return None
    run = Run()
    simulate(sequence, Line(run), run)
    names = {one.name for one in fitting}
    if set(run.starts) != names:
        run.broken.append(f"should run and do not, or the reverse: {sorted(set(run.starts) ^ names)}")
    if run.too_large != {one.name for one in sequence.arrivals} - names:
        run.broken.append(f"told as too large: {sorted(run.too_large)}")
    easy = simulate(sequence, Easy(sequence))
    ends = [easy.end, *(simulate(sequence, greedy(order)).end for order in ORDERS.values())]
    waits = [statistics.fmean(of.starts[one.name] - one.time for one in fitting) for of in (run, easy)]
    return Result(
        idle=sequence.idle(run.end),
        oracle=sequence.idle(min(ends)),
        easy=sequence.idle(easy.end),
        floor=sequence.idle(sequence.floor()),
        wait=waits[0],
        easy_wait=waits[1],
        broken=(*run.broken, *easy.broken),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    results, broken = [], 0
    for number in range(given.seed, given.seed + given.sequences):
        result = compare(make_sequence(random.Random(number)))
        if result is None:
            continue
        results.append(result)
        for told in result.broken:
            broken += 1
            print(f"sequence {number}: {told}")
    idle, oracle, easy, floor = (sum(getattr(one, of) for one in results) for of in ("idle", "oracle", "easy", "floor"))
    wait, easy_wait = (sum(getattr(one, of) for one in results) for of in ("wait", "easy_wait"))
    print(f"{len(results)} sequences, {broken} broken promises; GPU-hours idle: ", end="")
    print(f"line {idle / 3600:.0f}, oracle {oracle / 3600:.0f}, EASY {easy / 3600:.0f}, floor {floor / 3600:.0f}")
    print(f"idle GPU time over the oracle's: {idle / oracle - 1:+.1%}; over EASY's: {idle / easy - 1:+.1%}")
    print(
        f"over the floor that no schedule can beat: {idle / floor - 1:+.1%} (the oracle's: {oracle / floor - 1:+.1%})"
    )
    print(f"mean wait over EASY's: {wait / easy_wait - 1:+.1%}")
    return 1 if broken or idle > (1 + LIMIT) * oracle else 0


if __name__ == "__main__":
    sys.exit(main())
