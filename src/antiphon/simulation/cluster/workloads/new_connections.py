"""Two addresses make connections in bursts, by all listeners, at rates that come, go and change.

The simulated network knows machines by their names. A rate is of IP addresses, so these two have addresses for names. One
has a rate of its own now and then, the other only that of everybody.
"""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from antiphon.kafka.api import API_VERSIONS
from antiphon.kafka.messages import cluster as cm
from antiphon.model.quotas import CONNECTION_CREATION_RATE, DEFAULT, Quota
from antiphon.model.requests import AlterQuota
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.access_history import Known
from antiphon.simulation.cluster.workloads.http import page_or_nothing
from antiphon.simulation.cluster.workloads.lines import (
    OK,
    PROGRAM,
    TOO_MANY,
    OxiaLine,
    Shown,
    Told,
    ask_as_nobody,
    page_of,
)
from antiphon.simulation.cluster.workloads.meters import FASTER, HELD_S, Meter, MeteredWorkload
from antiphon.simulation.cluster.world import KAFKA_PORT
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from random import Random

    from antiphon.simulation.runtime.process import Process

ADDRESSES: Final = ("192.0.2.1", "192.0.2.2")
RATES: Final = (1, 2, 4)  # connections a second
BURST: Final = 40
VERSION: Final = 3  # of Kafka's ApiVersions
WAYS: Final = ("kafka", "native", "http", "oxia")
AGAIN_S: Final = 2.0 * FASTER  # after a pause as long there is room for one at the smallest rate
TRIES: Final = 5
_VERSIONS: Final = cm.ApiVersionsRequest(client_software_name=PROGRAM, client_software_version="1")


class NewConnections:
    """See the module's text."""

    OUTCOMES = ("connections-made", "connections-refused", "connections-again")

    def __init__(self, workload: MeteredWorkload) -> None:
        self._workload = workload
        self._tried: Counter[tuple[int, int, str]] = Counter()  # by node, its process, and address

    def set_up(self) -> tuple[AlterQuota, ...]:
        """What it needs."""
        return _rate(ADDRESSES[0], RATES[0]), _rate(DEFAULT, RATES[1])

    def begin(self) -> None:
        """Start the clients."""
        for address in ADDRESSES:
            self._workload.start(
                f"from {address}",
                lambda process, address=address: self._connect(process, address),  # type: ignore[misc]
                address=address,
            )

    def change(self, draw: "Random") -> AlterQuota:
        """Another rate, or none."""
        return _rate(draw.choice((ADDRESSES[0], DEFAULT)), draw.choice((None, *RATES)))

    async def _connect(self, process: "Process", address: str) -> None:
        draw, workload = process.random, self._workload
        while workload.goes_on():
            node = workload.any_node(draw)
            meter = Meter(workload, node, lambda known: _limit(known, address), frees=False)
            ways = draw.choice((WAYS, WAYS, (draw.choice(WAYS),)))
            for _ in range(draw.randint(1, BURST)):
                if not workload.goes_on():
                    break
                if await self._try(process, node, address, draw.choice(ways)):
                    meter.used(1, f"connections from {address} by {'/'.join(ways)}")
                if draw.random() < 0.1:
                    await asyncio.sleep(draw.uniform(0.0, 0.5))
            await asyncio.sleep(draw.uniform(0.0, 2.0))
        for node in range(len(workload.cluster.machines)):
            await self._connect_again(process, node, address)

    async def _connect_again(self, process: "Process", node: int, address: str) -> None:
        """All is mended: after a pause there is room for one at each node."""
        for _ in range(TRIES):
            await asyncio.sleep(AGAIN_S)
            found = await self._try(process, node, address, "http")
            require(
                found is not False,
                "rate-again",
                f"node {node} takes no connection from {address}, {AGAIN_S} s after the last one",
            )
            if found:
                self._workload.outcomes["connections-again"] += 1
                return

    async def _try(self, process: "Process", node: int, address: str, way: str) -> bool | None:
        """Was a connection taken? False: the node said that there are too many; None: it said nothing."""
        workload = self._workload
        since = workload.history.moment(node)
        count = node, workload.clocks.starts(node), address
        self._tried[count] += 1
        found = await self._opened(process, node, way)
        if found:
            workload.outcomes["connections-made"] += 1
        elif found is False:
            workload.outcomes["connections-refused"] += 1
            may_have = since is None or workload.history.could(
                since, lambda known: _limit(known, address) is not None
            )
            require(
                may_have and self._tried[count] > HELD_S * min(RATES),
                "rate-refuses",
                f"node {node} has too many connections from {address}, which has made {self._tried[count]} at most; "
                f"{'there was' if may_have else 'there was no'} rate since version {since}",
            )
        return found

    async def _opened(self, process: "Process", node: int, way: str) -> bool | None:
        place = self._workload.places[node]
        if way == "native":
            return await ask_as_nobody(place) is Told.REFUSED or None
        if way == "oxia":
            line = OxiaLine(process, place, Shown())
            told = await line.ask()
            await line.close()
            return told is Told.REFUSED or None
        if way == "kafka":
            return await _has_versions(process, place.host) or None
        status, _ = page_of(await page_or_nothing(place.host, "/livez"))
        return True if status == OK else False if status == TOO_MANY else None


async def _has_versions(process: "Process", host: str) -> bool:
    """Does Kafka's listener answer, before any login?"""
    address = (host, KAFKA_PORT)
    client = KafkaClient([address], process.random, PROGRAM)
    try:
        await client.ask(address, API_VERSIONS, VERSION, _VERSIONS)
    except NoAnswerError:
        return False
    finally:
        client.close()
    return True


def _limit(known: Known, address: str) -> float | None:
    return known.limit(CONNECTION_CREATION_RATE, (None, None, address), (None, None, DEFAULT))


def _rate(address: str, rate: int | None) -> AlterQuota:
    """An address, or everybody, has this rate from now on."""
    if rate is None:
        return AlterQuota(Quota(ip=address), gone=(CONNECTION_CREATION_RATE,))
    return AlterQuota(Quota(ip=address, connection_creation_rate=rate))
