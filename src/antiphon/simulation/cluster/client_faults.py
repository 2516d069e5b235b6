"""What goes wrong with clients: they end in the middle of a request, stand still, and do not read what they are sent.

A killed client leaves requests of unknown outcome, and on the node whatever a process leaves that says nothing: the judges
of its workload are told (`Workload.died`). After a while a new client with a number of its own takes its place.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.faults import Fault, Faults, register

if TYPE_CHECKING:
    from antiphon.simulation.cluster.workloads.workload import Client, Workload

SILENT: Final = 0.3  # of the kills: the client's machine goes down, and nobody is told
STALLED: Final = 0.3  # of the connections of clients


def _clients(faults: Faults) -> "list[tuple[Workload, Client]]":
    """Those that work, in order."""
    return [
        (workload, client)
        for workload in faults.workloads
        for client in workload.clients
        if client.process.alive and not client.task.done()
    ]


@register(
    "client_kill",
    10,
    Drawn(one_of(0, 0, 2), "clients", 0),
    then="its workload is told (`Workload.died`), and after a while another client takes its place",
)
def _client_kill(faults: Faults, fault: Fault, draw: Random) -> None:
    """A client ends in the middle of a request; in three of ten cases its machine goes down, and nobody is told."""
    found = [(workload, client) for workload, client in _clients(faults) if client.work is not None]
    if not found:
        return
    workload, client = draw.choice(found)
    faults.cluster.tell("client-killed", client.process.name)
    workload.kill(client, silently=draw.random() < SILENT)
    faults.later(fault.lasts_ms / 1000, workload.succeed)


@register(
    "client_pause",
    11,
    Drawn(one_of(0, 0, 2), "clients", 1),
)
def _client_pause(faults: Faults, fault: Fault, draw: Random) -> None:
    """A client stands still for a while."""
    found = [client for workload, client in _clients(faults) if workload.may_pause]
    if not found:
        return
    process = draw.choice(found).process
    faults.cluster.tell("client-paused", process.name, fault.lasts_ms)
    process.pause()
    faults.later(fault.lasts_ms / 1000, process.resume)


@register(
    "client_stall",
    12,
    Drawn(one_of(0, 0, 2), "clients", 2),
)
def _client_stall(faults: Faults, fault: Fault, draw: Random) -> None:
    """Some clients do not read from some of their connections for a while: what nodes write there waits."""
    nodes = {machine.host for machine in faults.cluster.machines}
    for transport in faults.cluster.network.transports():
        if transport.local[0] not in nodes and draw.random() < STALLED:
            faults.cluster.tell("client-stalled", transport.number, fault.lasts_ms)
            transport.inward.stall(draw.uniform(0.0, 2 * fault.lasts_ms / 1000))
