"""One seed: a cluster founded, work begun, things going wrong, everything mended, and a look at what is left."""

import gc
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from antiphon.client.aio import AsyncClient
from antiphon.client.log import logger as client_logger
from antiphon.invariants import InvariantError
from antiphon.simulation.cluster.cluster import SimulatedCluster
from antiphon.simulation.cluster.faults import Fault, Faults
from antiphon.simulation.cluster.operator import Operator
from antiphon.simulation.cluster.options import ClusterOptions
from antiphon.simulation.cluster.settle import check_everything, is_settled, what_is_open, who_is_cut_off
from antiphon.simulation.cluster.spans import traced
from antiphon.simulation.cluster.workloads.drawn import workloads_of
from antiphon.simulation.cluster.world import Event
from antiphon.simulation.runtime.loop import StalledError, collect_what_ended, current_process
from antiphon.simulation.violation import ViolationError

FOUND_S: Final = 60.0  # until a cluster without faults has been founded
REACHED_S: Final = 5.0  # until every node reaches every other, once nothing is in the way
LOOK_S: Final = 0.1  # between two looks at whether everything is settled
TRACE_EVENTS: Final = 60
PLAIN: Final = (str, bytes, int, float, type(None))
COUNTED: Final = frozenset({"snapshot_sent", "snapshot_resumed", "log_trimmed"})
"""What nodes say in passing that tells whether a run came to what it was made for."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A broken promise: which one, when, and the last events before it."""

    invariant: str
    message: str
    shard: int  # -1: none
    step: int
    time_s: float  # by the loop's clock, as `ClusterResult.began_s`
    trace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """Outcome of one seed."""

    options: ClusterOptions
    digest: str
    steps: int
    simulated_s: float
    entries: int = 0  # committed, in all shards
    operations: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    schedule: tuple[Fault, ...] = ()
    began_s: float = 0.0  # when the phase with faults began, or the run where that was not reached
    founded: bool = False  # was it reached?
    told: tuple[Event, ...] = ()  # what a story of the run is made of; kept of failed runs only
    failure: Failure | None = None


def run_cluster(
    options: ClusterOptions,
    *,
    mutated: AbstractContextManager[Any] | None = None,
    schedule: tuple[Fault, ...] | None = None,
) -> ClusterResult:
    """Run one world to its end or to the first broken promise. With a `schedule` these faults happen and no others."""
    collecting = gc.isenabled()
    gc.disable()
    freezes = not gc.get_freeze_count()
    if freezes:
        gc.freeze()  # what is there already is no garbage of this run, and need not be looked at after it
    is_muted, client_logger.disabled = client_logger.disabled, True  # its records have the real time
    try:
        with mutated or nullcontext():
            return _outcome(options, schedule)
    finally:
        client_logger.disabled = is_muted
        structlog.reset_defaults()
        # A collection of its own accord would hardly ever reach what a seed has left behind. Nobody holds that any more:
        # what were held here now would be frozen by the next run, and so on for ever.
        collect_what_ended()
        if freezes:
            gc.unfreeze()
        if collecting:
            gc.enable()


def _outcome(options: ClusterOptions, schedule: tuple[Fault, ...] | None) -> ClusterResult:
    run = _Run(options, schedule)
    structlog.configure(processors=[run.hear])
    with traced(run.cluster.tracer):
        return run.result()


def _plain(fact: Any) -> Any:
    """A fact that may go to another process: what is not plain is put into words."""
    if isinstance(fact, tuple | list):
        return tuple(map(_plain, fact))
    return fact if isinstance(fact, PLAIN) else repr(fact)


class _Run:
    def __init__(self, options: ClusterOptions, schedule: tuple[Fault, ...] | None) -> None:
        self.options = options
        self.cluster = SimulatedCluster(options)
        self.cluster.operator = Operator(self.cluster)
        self.faults = Faults(self.cluster, schedule)
        self.workloads = self.faults.workloads = workloads_of(self.cluster)
        self._due = False
        self._founded = False
        self._started_s = self._began_s = self.cluster.loop.now

    def hear(self, _logger: object, level: str, event: Any) -> Any:
        """What nodes and clients write to their logs: warnings and worse belong to the story of the run."""
        if level not in {"debug", "info"} or event.get("event") in COUNTED:
            process = current_process.get()
            who = "world" if process is None else process.name
            facts = [f"{name}={fact}" for name, fact in event.items() if name not in {"event", "exc_info"}]
            kind = event["event"] if event.get("event") in COUNTED else "log"
            self.cluster.tell_only(kind, who, str(event.get("event")), " ".join(facts))
        raise structlog.DropEvent

    def result(self) -> ClusterResult:
        cluster = self.cluster
        try:
            failure = self._outcome()
            return ClusterResult(
                options=self.options,
                digest=cluster.digest(),
                steps=cluster.loop.steps,
                simulated_s=cluster.loop.now - self._started_s,
                entries=sum(truth.end for truth in cluster.evidence.truths.values()),
                operations=self._operations(),
                events=dict(cluster.counts),
                schedule=tuple(self.faults.happened),
                began_s=self._began_s,
                founded=self._founded,
                told=() if failure is None else tuple(map(_plain, cluster.told)),
                failure=failure,
            )
        finally:
            cluster.close()

    def _outcome(self) -> Failure | None:
        try:
            self._play()
        except ViolationError as error:
            return self._failure(error.invariant, str(error), error.shard)
        except (InvariantError, StalledError) as error:
            return self._failure("no-crash", f"no-crash: {type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is a finding, with its trace
            return self._failure(
                "no-crash", "no-crash: " + "".join(traceback.format_exception(error)).rstrip()
            )
        return None

    def _operations(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for workload in self.workloads:
            for name, count in workload.outcomes.items():
                found[name] = found.get(name, 0) + count
        return found

    def _failure(self, name: str, message: str, shard: int = -1) -> Failure:
        loop, began_s = self.cluster.loop, self._began_s
        lines = tuple(
            f"{(at - began_s) * 1000:>12.3f} ms {kind:<16} " + " ".join(str(fact) for fact in facts)
            for at, kind, facts in list(self.cluster.told)[-TRACE_EVENTS:]
        )
        return Failure(name, message, shard, loop.steps, loop.now, lines)

    # -- the phases -----------------------------------------------------------------------------------------------

    def _play(self) -> None:
        cluster, options = self.cluster, self.options
        cluster.start_all()
        self._found()
        cluster.tell("begin")
        self._founded, self._began_s = True, cluster.loop.now
        for workload in self.workloads:
            workload.operations_per_s = options.operations_per_s / len(self.workloads)
            workload.begin()
        self.faults.begin()
        self._let_run(options.fault_ms / 1000)
        cluster.tell("mend")
        self.faults.stop()
        for workload in self.workloads:
            workload.stop()
        self._settle()
        check_everything(cluster)
        for workload in self.workloads:
            workload.check()
        if cluster.tracer is not None:
            cluster.tell("traced", cluster.tracer.check())
        for workload in self.workloads:
            workload.afterwards(self._until)

    def _found(self) -> None:
        """Let the cluster be founded, and the workloads make what they need."""

        async def set_up() -> None:
            db = AsyncClient(self.cluster.servers)
            await db.connect(FOUND_S)
            for workload in self.workloads:
                await workload.set_up(db)
            await db.close()

        self._until(self._all_joined, FOUND_S, lambda: "not all nodes have joined")
        task = self.cluster.client_process("set-up").run(set_up())
        self._until(task.done, FOUND_S, lambda: "the cluster is not founded")
        task.result()

    def _all_joined(self) -> bool:
        nodes = [machine.node for machine in self.cluster.machines]
        if not all(node is not None and node.agent.registered.is_set() for node in nodes):
            return False
        return not self.options.has_logins or all(
            node.view.access.users for node in nodes if node is not None
        )

    def _let_run(self, seconds: float) -> None:
        self._due = False
        self.cluster.loop.call_later(seconds, self._set_due)
        self.cluster.loop.run_until(lambda: self._due)

    def _set_due(self) -> None:
        self._due = True

    def _until(self, condition: Callable[[], bool], within_s: float, what: Callable[[], str]) -> None:
        deadline = self.cluster.loop.now + within_s
        while not condition():
            if self.cluster.loop.now > deadline:
                raise ViolationError("liveness", f"after {within_s:.0f} s: {what()}")
            self._let_run(LOOK_S)

    def _settle(self) -> None:
        seconds = self.options.settle_ms / 1000
        self._until(lambda: not who_is_cut_off(self.cluster), REACHED_S, lambda: who_is_cut_off(self.cluster))
        self._until(lambda: all(one.done for one in self.workloads), seconds, self._still_working)
        self._until(lambda: is_settled(self.cluster), seconds, lambda: what_is_open(self.cluster))

    def _still_working(self) -> str:
        return "these clients still wait: " + ", ".join(one.name for one in self.workloads if not one.done)
