"""Processes that end in the middle of what they do: between two of their steps, or at one of their calls to the disk.

The other ends of processes are timers, and a timer fires when nothing else is due: all that follows at once from a message
or from a sync is then done. These ends come after a drawn number of callbacks of the process, or of its calls to the disk,
also of those that only look. So they are between what was said and what was to come right after it.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.faults import Fault, Faults, register, restart_later

if TYPE_CHECKING:
    from antiphon.simulation.cluster.machine import Machine

STEPS: Final = (4, 40, 400)  # at most so many callbacks until the end
CALLS: Final = (8, 80)  # the same of calls to the disk
AGAIN: Final = 0.25  # chance that the next process ends while it starts
LATEST_S: Final = 0.5  # by then it ends all the same, if it does not do that much

End = Callable[["Machine", Random], None]


def _kill(machine: "Machine", _draw: Random) -> None:
    machine.kill()


def _power(machine: "Machine", draw: Random) -> None:
    machine.power_off(sent_arrives=draw.random() < 0.5)


@register(
    "kill_midway",
    34,
    Drawn(one_of(0, 2, 6), "midway", 0),
    then="the machine is started again; one process in four then ends again at one of its first calls",
    told="",
)
def _kill_midway(faults: Faults, fault: Fault, draw: Random) -> None:
    """`kill -9` after up to 4, 40 or 400 more steps, or at one of the next 8 or 80 calls to the disk. What it has said
    arrives.
    """
    _plan(faults, fault, draw, _kill)


@register(
    "power_midway",
    35,
    Drawn(one_of(0, 2, 6), "midway", 1),
    then="the machine is started again; one process in four then ends again at one of its first calls",
    told="",
)
def _power_midway(faults: Faults, fault: Fault, draw: Random) -> None:
    """The same with the power of the machine. What it has said by then arrives or not."""
    _plan(faults, fault, draw, _power)


def _plan(faults: Faults, fault: Fault, draw: Random, end: End) -> None:
    machine = faults.machine(fault)
    again = draw.random() < AGAIN

    def over() -> None:
        if faults.stopped:
            return
        end(machine, draw)
        if again:
            _at_a_call(faults, machine, draw, partial(end, machine, draw))
        restart_later(faults, machine, fault.lasts_ms)

    process = machine.process
    if machine.is_up and process is not None and draw.random() < 0.5:
        steps = draw.randint(1, draw.choice(STEPS))
        faults.cluster.tell_only("midway", machine.node_id, steps, "steps")
        process.end_after(steps, over)
    else:
        _at_a_call(faults, machine, draw, over)

    def by_now() -> None:
        if machine.process is process and machine.is_up:
            over()

    faults.later(LATEST_S, by_now)
    if not machine.is_up:
        restart_later(faults, machine, fault.lasts_ms + round(LATEST_S * 1000))


def _at_a_call(faults: Faults, machine: "Machine", draw: Random, end: Callable[[], None]) -> None:
    """Where no process runs, it is the next one that ends, mostly as it reads what it finds."""
    calls = draw.randrange(draw.choice(CALLS))
    faults.cluster.tell_only("midway", machine.node_id, calls, "calls to its disk")
    machine.disk.end_at, machine.disk.on_end = machine.disk.looks + calls, end
