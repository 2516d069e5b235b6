"""More connections than a listener takes, and more topics than are made on demand.

Nodes may have few descriptors and few connections here (`machine.DESCRIPTORS`, `FEW_PLACES`). Three addresses fill one
listener after the other. Everything that must be true of what they get is true of connections that all answer at the same
time, whatever the network does meanwhile; who must get in, and be told why not, is seen when all is mended.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from antiphon.errors import InvalidRequestError, TopicExistsError, UnknownTopicError
from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import cluster as cm
from antiphon.server.file_limits import connection_shares
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.kafka_client import METADATA, KafkaClient, NoAnswerError
from antiphon.simulation.cluster.machine import DESCRIPTORS, FEW_PLACES
from antiphon.simulation.cluster.workloads.cluster_log import TopicHistory
from antiphon.simulation.cluster.workloads.crowd_lines import HTTP, KAFKA, NATIVE, OXIA, Line, connect
from antiphon.simulation.cluster.workloads.logins import UNKNOWN_SHARD
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import Workload, insist
from antiphon.simulation.cluster.world import KAFKA_PORT
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

SHARES: Final = connection_shares(DESCRIPTORS)
PLACES: Final = {NATIVE: FEW_PLACES["connections"], KAFKA: SHARES.kafka, HTTP: SHARES.http, OXIA: SHARES.oxia}
"""Of a node's listeners."""
SHARE: Final = 0.5  # of them, for one address
ADDRESSES: Final = 3
REFUSALS: Final = 3  # after which an address gives up
END_S: Final = 20.0  # when all is mended: until who may get in is in
STARTS_S: Final = 5.0  # and until an address has its share
TRIES_S: Final = 0.2
TOLD_S: Final = 6.0  # between two lines of a node's log about connections that it refuses, at most
REASONS: Final = {
    NATIVE: {"too_many_connections", "too_many_connections_of_an_address"},
    KAFKA: {"kafka connection refused"},
    OXIA: {"oxia_connection_closed"},
}
"""Lines of a node's log. Over HTTP the client is told, with status 503."""
ROOM: Final = FEW_PLACES["topics_on_demand"]
DEMANDED: Final = "demanded"
OWNED: Final = "owned"
OWNED_MAX: Final = 3
NAMES_MAX: Final = 25  # that one client asks for
METADATA_VERSION: Final = 9
DEMANDERS: Final = 2


@workload("crowds", 40, Drawn(seldom(0.06)), logs_in=False)
class CrowdsWorkload(Workload):
    """Clients of three addresses open more connections than a node takes, at one listener of one node after the other; at
    the HTTP listener where nobody else uses that. Others ask for topics that do not exist until no more are made on demand,
    and somebody makes topics by request. Nodes have few places, and room for few topics on demand.

    Checked: one address never has more than its share of connections that answer, all together never more than the listener
    takes. In the end, with a listener full, nodes find each other again after their connections broke; with one address at
    its share, others get in; the node's log says why who is refused is; and an address whose connections are closed gets in
    again. No topic is made on demand that was first asked for when the node that was asked knew of too many; one that exists
    is told of, and others are made by request, all the same; in the end, with some of them deleted, there is room again at
    each node, also for who has had his share.
    """

    may_pause = False

    def __init__(self, cluster: "SimulatedCluster", name: str = "crowds") -> None:
        super().__init__(cluster, name)
        self.history = TopicHistory(cluster)
        self.crowds: list[Crowd] = []
        options = cluster.options
        others = any(
            (options.http_clients, options.readiness_monitors, options.api_clients, options.stalled_readers)
        )
        self._listeners = (NATIVE, KAFKA, OXIA) if others else (NATIVE, KAFKA, OXIA, HTTP)
        self._owned: list[str] = []
        self._asked_at: dict[str, int] = {}  # by name, what the node knew that was asked first
        self.outcomes = dict.fromkeys(
            (
                *("crowd-in", "crowd-refused", "crowd-told", "crowd-again", "strangers-in", "peers-in"),
                *("demand-asked", "demand-made", "demand-refused", "demand-again", "demand-owned"),
            ),
            0,
        )

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        await insist(lambda: db.create_topic(OWNED))

    def begin(self) -> None:
        """See `Workload`."""
        for number in range(ADDRESSES):
            self.crowds.append(Crowd(self, self.cluster.client_process(f"{self.name}-address-{number}")))
        self.spawn("director", self._direct)
        self.spawn("owner", self._own)
        for number in range(DEMANDERS):
            self.spawn(
                f"demander-{number}",
                lambda process, number=number: self._demand(process, number),  # type: ignore[misc]
            )

    def check(self) -> None:
        """See `Workload`."""
        self.history.follow()
        for name, since in self._asked_at.items():
            made = self.history.made.get(name)
            require(
                made is None or self.history.least(since, made) < ROOM,
                "demand",
                f"{name} was made on demand at version {made}, and there were {ROOM} topics and more from version {since} "
                f"on, when it was first asked for",
            )
        for name in self._owned:
            require(name in self.history.names, "owned-topic", f"topic {name} was made, and there is none")

    # -- connections --------------------------------------------------------------------------------------------------

    async def _direct(self, process: "Process") -> None:
        draw = process.random
        while not self.stopped:
            await self._fill(self.any_node(draw), draw.choice(self._listeners))
            await asyncio.sleep(draw.uniform(0.0, 0.5))
            await self._leave(self.crowds)
            await asyncio.sleep(draw.uniform(0.0, 0.5))
        for node in range(len(self.cluster.machines)):
            for listener in self._listeners:
                await self._last_look(process, node, listener)

    async def _fill(self, node: int, listener: str) -> None:
        """All addresses take what they get; none gets more than its share, and all no more than there is."""
        work = [crowd.process.run(crowd.fill(node, listener)) for crowd in self.crowds]
        await asyncio.gather(*work)
        answered = await asyncio.gather(*(crowd.process.run(crowd.answered()) for crowd in self.crowds))
        most = PLACES[listener]
        require(
            max(answered) <= int(most * SHARE) and sum(answered) <= most,
            "places-of-listener",
            f"node {node} answers {answered} connections of {ADDRESSES} addresses by its {listener} listener; "
            f"it takes {most}, and {int(most * SHARE)} of one address",
        )

    async def _leave(self, crowds: "list[Crowd]") -> None:
        await asyncio.gather(*(crowd.process.run(crowd.leave()) for crowd in crowds))

    async def _last_look(self, process: "Process", node: int, listener: str) -> None:
        """All is mended: who gets in at a listener that is full, and at one where one address has its share?"""
        first, *others = self.crowds
        share, since_s = int(PLACES[listener] * SHARE), self.now
        while len(first.held) < share and self.now - since_s < STARTS_S:  # a node may have to start yet
            await first.process.run(first.fill(node, listener))
            await asyncio.sleep(TRIES_S)
        has_share, since_s = len(first.held) == share, self.now
        await self._fill(node, listener)
        if has_share and first.refused_s >= since_s and listener in REASONS:
            self.outcomes["crowd-told"] += 1
            self._was_told(node, since_s, listener)
        if listener == NATIVE:
            await self._peers_return(node)
        await self._leave(others)
        await first.process.run(first.fill(node, listener))
        await self._gets_in(process, node, listener, whom="strangers-in")
        await self._leave([first])
        await first.process.run(self._gets_in(first.process, node, listener, whom="crowd-again"))

    async def _gets_in(self, process: "Process", node: int, listener: str, *, whom: str) -> None:
        async def try_it() -> bool:
            try:
                await (await connect(process, self.host(node), listener)).close()
            except NoAnswerError:
                return False
            return True

        await self._until(
            try_it, f"{whom}: node {node} lets nobody in by its {listener} listener", "places-again"
        )
        self.outcomes[whom] += 1

    async def _peers_return(self, node: int) -> None:
        """The connections between this node and the others break, and its listener is full."""
        hosts = {machine.host for machine in self.cluster.machines}
        for one in self.cluster.network.transports():
            ends = {one.local[0], one.remote[0]}
            if self.host(node) in ends and len(ends) == 2 and ends <= hosts:
                one.reset()
        refill = [crowd.process.run(crowd.fill(node, NATIVE)) for crowd in self.crowds]

        async def all_there() -> bool:
            nodes = [machine.node for machine in self.cluster.machines]
            return all(one is not None and not one.network.lost_peers() for one in nodes)

        await asyncio.gather(*refill)
        await self._until(all_there, f"node {node} and the others do not find each other again", "peers-in")
        self.outcomes["peers-in"] += 1

    def _was_told(self, node: int, since_s: float, listener: str) -> None:
        """Does the node's log say why it refuses connections? Not judged where too much has happened since to be kept."""
        told = self.cluster.told
        has_gaps = len(told) == told.maxlen and told[0][0] > since_s - TOLD_S
        said = has_gaps or any(
            at >= since_s - TOLD_S
            and kind == "log"
            and str(facts[0]).startswith(f"{self.host(node)}#")
            and facts[1] in REASONS[listener]
            for at, kind, facts in reversed(told)
        )
        require(said, "refusal-told", f"node {node} refuses connections, and its log does not say why")

    async def _until(self, holds: Callable[[], Awaitable[bool]], what: str, invariant: str) -> None:
        since_s = self.now
        while not await holds():
            require(self.now - since_s < END_S, invariant, f"{what}, {END_S:.0f} s after all was mended")
            await asyncio.sleep(TRIES_S)

    # -- topics -------------------------------------------------------------------------------------------------------

    async def _demand(self, process: "Process", client: int) -> None:
        """Ask for one name after the other."""
        draw, kafka, number = process.random, self._kafka(process), 0
        while not self.stopped:
            if number < NAMES_MAX:
                await self._ask_for(kafka, self.any_node(draw), f"{DEMANDED}-{client}-{number}")
                number += draw.random() < 0.8  # else for the same one again
            await self.think(process)
        if not client:
            await self._demand_again(kafka)
        kafka.close()

    def _kafka(self, process: "Process") -> KafkaClient:
        return KafkaClient([(self.host(0), KAFKA_PORT)], process.random, process.name)

    async def _ask_for(self, kafka: KafkaClient, node: int, name: str) -> int | None:
        """The error code of a topic whose metadata are asked for, to be made if there is none; None: no answer."""
        request = cm.MetadataRequest(
            topics=[cm.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
        )
        address = (self.host(node), KAFKA_PORT)
        try:
            connection = await kafka.connection(address)
            # Whoever takes it is the process that this connection is to, which knows no less by then.
            running = self.cluster.machines[node].node
            version = -1 if running is None else running.view.version
            if name != OWNED:
                self._asked_at[name] = min(version, self._asked_at.get(name, version))
            elif running is None or OWNED not in running.view.topics:
                return None
            told = await kafka.send(connection, METADATA, METADATA_VERSION, request, 2 * TOLD_S)
        except NoAnswerError:
            return None
        found = int(told.topics[0].error_code)
        self.outcomes["demand-asked"] += 1
        self.outcomes["demand-made"] += found == code.NONE
        self.outcomes["demand-refused"] += found == code.UNKNOWN_TOPIC_OR_PARTITION
        return found

    async def _demand_again(self, kafka: KafkaClient) -> None:
        """All is mended, and somebody deletes topics, those of the first client too: each node makes one for him again."""
        db = await self.connected()
        own, room = f"{DEMANDED}-0-", len(self.cluster.machines)
        mine = [name for name in self.history.names if name.startswith(DEMANDED)]
        mine.sort(key=lambda name: name.startswith(own))
        while mine and (self.history.count > ROOM - room or mine[-1].startswith(own)):
            name = mine.pop()
            with contextlib.suppress(UnknownTopicError):  # gone by a try before this one
                await insist(lambda name=name: db.delete_topic(name))  # type: ignore[misc]
        await db.close()
        if self.history.count > ROOM - room:
            return  # others have made too many

        async def is_made(node: int) -> bool:
            made = await self._ask_for(kafka, node, f"{DEMANDED}-again-{node}") == code.NONE
            return made or self.history.count >= ROOM  # what was asked for before came late

        for node in range(room):
            await self._until(
                lambda node=node: is_made(node),  # type: ignore[misc]
                f"node {node} makes no topic on demand, and there is room for it",
                "demand-again",
            )
            self.outcomes["demand-again"] += 1

    async def _make_owned(self, db: "AsyncClient") -> None:
        """By request, which is refused only where too few nodes are alive for the replicas."""
        name = f"{OWNED}-{len(self._owned)}"
        try:
            await insist(lambda: db.create_topic(name))
        except TopicExistsError:  # by a try before this one
            pass
        except InvalidRequestError as refusal:
            require("alive" in refusal.message, "owned-topic", f"{name} is refused: {refusal.message}")
            return
        self._owned.append(name)
        self.outcomes["demand-owned"] += 1

    async def _own(self, process: "Process") -> None:
        """Make topics by request, whatever others have demanded, and ask for one that is there."""
        draw, kafka, db = process.random, self._kafka(process), await self.connected()
        while not self.stopped:
            if len(self._owned) < OWNED_MAX and draw.random() < 0.1:
                await self._make_owned(db)
            node = self.any_node(draw)
            found = await self._ask_for(kafka, node, OWNED)
            require(
                found in {None, code.NONE, code.LEADER_NOT_AVAILABLE},
                "owned-topic",
                f"node {node} says {found} of topic {OWNED}, which exists",
            )
            await self.think(process)
        kafka.close()
        await db.close()


class Crowd:
    """The connections of one address."""

    def __init__(self, workload: CrowdsWorkload, process: "Process") -> None:
        self.process = process
        self.held: list[Line] = []
        self.refused_s = -1.0  # when it was, last
        self._workload = workload

    async def fill(self, node: int, listener: str) -> None:
        """Open connections to a listener, in addition to those that it has, until some are refused."""
        self.held = [one for one in self.held if not one.is_over]
        left = REFUSALS
        while left and len(self.held) <= PLACES[listener] * SHARE + REFUSALS:
            try:
                self.held.append(await connect(self.process, self._workload.host(node), listener))
                self._workload.outcomes["crowd-in"] += 1
            except NoAnswerError:
                self._workload.outcomes["crowd-refused"] += 1
                self.refused_s = self._workload.now
                left -= 1

    async def answered(self) -> int:
        """On how many of them a question is answered."""
        return sum(await asyncio.gather(*(one.ask(UNKNOWN_SHARD) for one in self.held)))

    async def leave(self) -> None:
        """Hang up on all."""
        held, self.held = self.held, []
        for one in held:
            await one.close()
