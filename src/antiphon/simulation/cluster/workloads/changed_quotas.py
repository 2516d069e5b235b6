"""A user who writes more than he may, at each listener, while his quota is changed, taken away and set again.

What he may get through is bounded by the quota that his node goes by, for as long as that is known to be one and the same.
When all is mended, he floods one node after the other by every listener until all wait; then the quota changes, and all are
let go on.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import AccessDeniedError, AntiphonError, NotLeaderError, UnknownShardError
from antiphon.kafka.api import PRODUCE
from antiphon.model.access import CLUSTER_NAME, Acl, Operation, Resource
from antiphon.model.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser, AppendBatch
from antiphon.oxia import messages as om
from antiphon.oxia.status import NOT_FOUND, PERMISSION_DENIED
from antiphon.records.builder import build_batch
from antiphon.simulation.cluster import kafka_messages as m
from antiphon.simulation.cluster.accounts import credential_of, password_of
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.oxia_client import CallError, NoEndError
from antiphon.simulation.cluster.workloads.http import page_or_nothing
from antiphon.simulation.cluster.workloads.lines import (
    OK,
    TOO_MANY,
    KafkaLine,
    NativeLine,
    OxiaLine,
    Shown,
    Told,
    page_of,
)
from antiphon.simulation.cluster.workloads.logins import UNKNOWN_SHARD
from antiphon.simulation.cluster.workloads.meters import Meter, MeteredWorkload
from antiphon.simulation.cluster.workloads.workload import insist
from antiphon.simulation.runtime.process import Shield
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from random import Random

    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.workloads.lines import Place
    from antiphon.simulation.runtime.process import Process

RATED: Final = "rated"  # the user
ENTITY: Final = (RATED, None, None)
RATES: Final = (None, 2_000, 20_000)  # bytes a second, read and written
FEW: Final = 1_000
FLOOD_BYTES: Final = 5_000  # about, of each of its requests
ANSWER_S: Final = 30.0  # of one request: a node makes nobody wait for longer than 20 s
WAITS_S: Final = 1.0  # who has no answer after that is made to wait
RELEASED_S: Final = 2.5  # of a node's time, from when it has known of another quota
END_S: Final = 20.0  # when all is mended: until all wait
LOOK_S: Final = 0.1
BACK_OFF_S: Final = 0.3
PAUSE_S: Final = 0.05  # where there is no quota, nobody makes them wait
VERSION: Final = 9  # of Kafka's Produce
BATCH: Final = bytes(build_batch([(None, bytes(FLOOD_BYTES), (), 1)]))
SHOWN: Final = Shown(RATED, password_of(RATED))


class _Sender(ABC):
    """A connection on which requests are sent that cost their bytes, and are answered by the node alone."""

    KIND: Any = None

    def __init__(self, process: "Process", place: "Place") -> None:
        self.line: Any = self.KIND(process, place, SHOWN)

    async def is_ready(self) -> bool:
        """Log in."""
        return await self.line.ask() in {Told.LET, Told.DENIED}

    @abstractmethod
    async def send(self) -> bool:
        """Was a request answered?"""

    async def close(self) -> None:
        """Hang up."""
        await self.line.close()


class _KafkaSender(_Sender):
    KIND = KafkaLine

    async def send(self) -> bool:
        request = m.produce_one("nobody-may", BATCH)
        try:
            await self.line.kafka.send(self.line.connection, PRODUCE, VERSION, request, ANSWER_S)
        except NoAnswerError:
            return False
        return True


class _NativeSender(_Sender):
    KIND = NativeLine

    async def send(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.line.connection.request(AppendBatch(UNKNOWN_SHARD), (BATCH,))
        except (AccessDeniedError, NotLeaderError, UnknownShardError):
            return True
        except (AntiphonError, TimeoutError):
            return False
        return True


class _OxiaSender(_Sender):
    KIND = OxiaLine

    async def send(self) -> bool:
        puts = [om.PutRequest(key=b"k", value=bytes(FLOOD_BYTES))]
        request = om.WriteRequest(shard=UNKNOWN_SHARD, puts=puts)
        try:
            await self.line.client.call("Write", request, om.WriteResponse, ANSWER_S)
        except NoEndError:
            return False
        except CallError as error:
            return error.code in {NOT_FOUND, PERMISSION_DENIED}
        return True


SENDERS: Final[tuple[type[_Sender], ...]] = (_KafkaSender, _NativeSender, _OxiaSender)


class ChangedQuotas:
    """See the module's text."""

    OUTCOMES = ("rated-answers", "rated-pages", "rated-pages-refused", "rated-waited", "rated-released")

    def __init__(self, workload: MeteredWorkload) -> None:
        self.workload = workload

    def set_up(self) -> "tuple[AlterUser | AlterAcls | AlterQuota, ...]":
        """What it needs."""
        sees = Acl(f"User:{RATED}", Resource.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)
        return AlterUser(RATED, (credential_of(RATED),)), AlterAcls((sees,)), _quota(RATES[1])

    def begin(self) -> None:
        """Start the clients."""
        for kind in SENDERS:
            name = f"floods by{kind.__name__}"
            self.workload.start(name, lambda process, kind=kind: self._flood(process, kind), Shield())  # type: ignore[misc]
        self.workload.start("reads pages", self._read_pages, Shield())
        self.workload.start("releases", self._release_all, Shield())

    def change(self, draw: "Random") -> AlterQuota:
        """Another quota, or none."""
        return _quota(draw.choice(RATES))

    # -- while things go wrong ----------------------------------------------------------------------------------------

    async def _flood(self, process: "Process", kind: type[_Sender]) -> None:
        draw, workload = process.random, self.workload
        while workload.goes_on():
            until_s = workload.now + draw.uniform(0.0, 6.0)
            flooder = Flooder(self, process, workload.any_node(draw), kind)
            await flooder.run(lambda until_s=until_s: workload.goes_on() and workload.now < until_s)  # type: ignore[misc]

    async def _read_pages(self, process: "Process") -> None:
        draw, workload = process.random, self.workload
        while workload.goes_on():
            node = workload.any_node(draw)
            meter = Meter(workload, node, lambda known: known.limit(CONSUMER_BYTE_RATE, ENTITY), frees=True)
            for _ in range(draw.randint(1, 60)):
                if not workload.goes_on() or not await self._read_page(node, meter):
                    break
                await asyncio.sleep(draw.choice((0.0, 0.0, 0.2)))
            await asyncio.sleep(draw.uniform(0.0, BACK_OFF_S))

    async def _read_page(self, node: int, meter: Meter) -> bool:
        workload = self.workload
        since, host = workload.history.moment(node), workload.host(node)
        answer = await page_or_nothing(host, "/status", f"Authorization: {SHOWN.authorization}\r\n")
        status, body = page_of(answer)
        if status == OK:
            workload.outcomes["rated-pages"] += 1
            meter.used(len(body), f"bytes of pages of {RATED}")
        elif status == TOO_MANY:
            workload.outcomes["rated-pages-refused"] += 1
            require(
                b"Retry-After: " in answer
                and (
                    since is None
                    or workload.history.could(
                        since, lambda known: known.limit(CONSUMER_BYTE_RATE, ENTITY) is not None
                    )
                ),
                "quota-refuses",
                f"node {node} has no page for {RATED}, who has had no quota since version {since}: {answer[:200]!r}",
            )
        return status in {OK, TOO_MANY}

    # -- when all is mended -------------------------------------------------------------------------------------------

    async def _release_all(self, process: "Process") -> None:
        workload = self.workload
        await workload.changes_are_over.wait()
        db = await workload.connected()
        for node in range(len(workload.cluster.machines)):
            await self._release_at(process, node, db)
        await db.close()

    async def _release_at(self, process: "Process", node: int, db: "AsyncClient") -> None:
        """All wait who flood a node by any listener; when the quota is another one, all go on."""
        workload, draw = self.workload, process.random
        await insist(lambda: db.administer(_quota(FEW)))
        flooders = [Flooder(self, process, node, kind) for kind in SENDERS]
        starts, is_over = workload.clocks.starts(node), False
        tasks = [asyncio.create_task(one.run(lambda: not is_over)) for one in flooders]
        since_s = workload.now
        while not all(one.waited_s > WAITS_S for one in flooders):
            require(
                workload.now - since_s < END_S,
                "quota-delays",
                f"node {node} makes {[str(one) for one in flooders if one.waited_s <= WAITS_S]} not wait",
            )
            await asyncio.sleep(LOOK_S)
        asked = [one.asked_s for one in flooders]
        workload.outcomes["rated-waited"] += len(asked)
        await insist(lambda: db.administer(_quota(draw.choice((None, 1_000_000)))))
        version = workload.history.now().version
        while waiting := [
            str(one) for one, at_s in zip(flooders, asked, strict=True) if one.asked_s == at_s and one.waits
        ]:
            if workload.clocks.starts(node) != starts:
                break  # a power failure that was due came late: they wait for a process that is gone
            known_for_s = workload.clocks.knows_for_s(node, version)
            require(
                known_for_s < RELEASED_S,
                "quota-releases",
                f"node {node} still makes {waiting} wait, and knows for {known_for_s:.1f} s of another quota",
            )
            await asyncio.sleep(LOOK_S)
        workload.outcomes["rated-released"] += len(asked) - len(waiting)
        is_over = True
        for task in tasks if waiting else ():
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()


class Flooder:
    """Sends one request after the other by one listener of a node.

    Attributes:
        asked_s: when the last one was sent.
        waits: has it no answer yet?
    """

    def __init__(self, owner: ChangedQuotas, process: "Process", node: int, kind: type[_Sender]) -> None:
        self.asked_s = 0.0
        self.waits = False
        self._workload = owner.workload
        self._process = process
        self._node = node
        self._kind = kind

    @property
    def waited_s(self) -> float:
        """For how long the last request has had no answer."""
        return self._workload.now - self.asked_s if self.waits else 0.0

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Go on for as long as that is said."""
        workload = self._workload
        while goes_on():
            sender = self._kind(self._process, workload.places[self._node])
            try:
                if await sender.is_ready():
                    await self._send(sender, goes_on)
                else:
                    await asyncio.sleep(BACK_OFF_S)
            finally:
                await sender.close()

    async def _send(self, sender: _Sender, goes_on: Callable[[], bool]) -> None:
        workload = self._workload
        meter = Meter(workload, self._node, lambda known: known.limit(PRODUCER_BYTE_RATE, ENTITY), frees=True)
        while goes_on():
            self.asked_s, self.waits = workload.now, True
            is_answered = await sender.send()
            self.waits = False
            if not is_answered:
                return
            workload.outcomes["rated-answers"] += 1
            meter.used(FLOOD_BYTES, f"bytes of {self}")
            await asyncio.sleep(self._process.random.uniform(0.0, PAUSE_S))

    def __str__(self) -> str:
        return f"{RATED} by{self._kind.__name__}"


def _quota(rate: float | None) -> AlterQuota:
    """The user's quota is this from now on."""
    if rate is None:
        return AlterQuota(Quota(RATED), gone=(PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE))
    return AlterQuota(Quota(RATED, producer_byte_rate=rate, consumer_byte_rate=rate))
