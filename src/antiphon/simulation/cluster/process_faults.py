"""Processes that end, machines that lose power, and processes that stand still."""

from random import Random

from antiphon.simulation.cluster.drawing import MAIN, Drawn, one_of
from antiphon.simulation.cluster.faults import Fault, Faults, register, restart_later


@register(
    "kill",
    1,
    Drawn(one_of(0, 2, 6), MAIN, 16),
    then="the machine is started again",
    told="",
)
def _kill(faults: Faults, fault: Fault, _draw: Random) -> None:
    """`kill -9`, as a timer: what follows at once from a message or from a sync is done by then."""
    machine = faults.machine(fault)
    machine.kill()
    restart_later(faults, machine, fault.lasts_ms)


@register(
    "power",
    2,
    Drawn(one_of(0, 2, 6), MAIN, 17),
    then="the machine is started again",
    told="",
)
def _power(faults: Faults, fault: Fault, draw: Random) -> None:
    """The machine loses power, at once or at one of its next 40 calls that change something on the disk."""
    machine = faults.machine(fault)
    if draw.random() < 0.5:
        machine.power_off()
    else:
        machine.disk.crash_after = machine.disk.calls + draw.randrange(40)
        faults.later(0.5, machine.power_off_if, machine.process)
    restart_later(faults, machine, fault.lasts_ms + 500)


@register(
    "power_all",
    3,
    Drawn(one_of(0, 0, 1), MAIN, 18),
    then="each is started again at a moment of its own",
    told="all machines lost power",
)
def _power_all(faults: Faults, fault: Fault, draw: Random) -> None:
    """All machines lose power at once."""
    for machine in faults.cluster.machines:
        machine.power_off()
        restart_later(faults, machine, draw.randint(1, fault.lasts_ms))


@register(
    "pause",
    4,
    Drawn(one_of(0, 2), MAIN, 19),
    told="node {node} was stopped for {ms} ms",
)
def _pause(faults: Faults, fault: Fault, _draw: Random) -> None:
    """The process stands still for a while (SIGSTOP)."""
    process = faults.machine(fault).process
    if process is not None:
        process.pause()
        faults.later(fault.lasts_ms / 1000, process.resume)
