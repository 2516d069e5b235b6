"""Users and access control lists come and go while clients of several users work at every listener.

What is judged: whom no version of the lists that the node may have known allows something, does not get it; whom all of them
allow it, is not denied it (`access_history`). The same for logins. Nodes are asked whether they lead or not: they decide
who may ask before they say so.

One user has a quota, and a client that does not wait when it is told to: what it gets through on one connection is bounded.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon import system
from antiphon.client.connection import Connection, open_connection
from antiphon.errors import AccessDeniedError, AntiphonError, NotLeaderError, UnauthenticatedError
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import FETCH, PRODUCE
from antiphon.model.access import Acl, Operation, Pattern, Permission, Resource
from antiphon.model.quotas import Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser, AppendBatch, Fetch
from antiphon.records.builder import build_batch
from antiphon.security.account import Account
from antiphon.simulation.cluster import kafka_messages as m
from antiphon.simulation.cluster.accounts import credential_of, password_of
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.access_history import AccessHistory, Moment, allowed
from antiphon.simulation.cluster.workloads.http import page_or_nothing
from antiphon.simulation.cluster.workloads.logins import log_in_to_kafka
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload, administer_all, insist
from antiphon.simulation.cluster.world import KAFKA_PORT, NATIVE_PORT
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from random import Random

    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

TOPICS: Final = ("access-a", "access-b")
NAMES: Final = ((Pattern.LITERAL, "access-a"), (Pattern.LITERAL, "*"), (Pattern.PREFIXED, "access-"))
LIMITED: Final = "limited"  # the user with a quota
RATE: Final = 2_000.0  # bytes a second that it may write at each node
FLOOD_BYTES: Final = 5_000  # about, of each of its requests
HELD_S: Final = 10.0  # of the rate, what a quota holds at once
FASTER: Final = 1.25  # than the world's, a node's clock at most
ASKS_MAX: Final = 6  # requests on one connection
OPERATOR_PAUSE_S: Final = 0.06
PRODUCE_VERSION, FETCH_VERSION = 9, 12
PASSED: Final = {code.NONE, code.NOT_LEADER_OR_FOLLOWER}
PAGES: Final = ("/topics", "/status", "/metrics", "/")


@workload("principals", 21, Drawn(seldom(0.08, 2)))
class AccessWorkload(Workload):
    """Users and entries of access control lists come and go; clients of several users write and read at every node through
    the native and the Kafka listener, and ask for pages without a login; one user has a quota, and a client that does not
    wait; some worlds without other Kafka and HTTP clients have it, and then all clients log in.

    Checked: by what `__cluster` says in some version that the node may have gone by (`access_history.py`), each login and
    request is rightly taken or rightly refused; no page is shown; no connection gets more through than the quota; at the
    end all nodes know the same users and entries.

    How much a client gets in a second is measured: none of them stands still.
    """

    may_pause = False

    def __init__(self, cluster: "SimulatedCluster", name: str = "access") -> None:
        super().__init__(cluster, name)
        self.users = [f"user-{number}" for number in range(cluster.options.principals)]
        self.history = AccessHistory(cluster)
        self.shard_ids: dict[str, int] = {}
        self._begun_at = -1  # version of the metadata when all that is needed had been set up
        self.outcomes = dict.fromkeys(
            ("access-passed", "access-denied", "access-unknown", "access-changes", "logins", "floods"), 0
        )

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        for topic in TOPICS:
            await insist(lambda name=topic: db.create_topic(name))  # type: ignore[misc]
        found = {topic.name: topic for topic in (await db.metadata()).topics}
        self.shard_ids = {name: found[name].shards[0].shard_id for name in TOPICS}
        requests = [AlterUser(name, (credential_of(name),)) for name in (*self.users, LIMITED)]
        await administer_all(db, (*requests, AlterQuota(Quota(LIMITED, producer_byte_rate=RATE))))

    def begin(self) -> None:
        """See `Workload`."""
        self._begun_at = self.history.now().version
        self.spawn("operator", self._operate)
        for user in self.users:
            self.spawn(f"native-{user}", lambda process, user=user: self._work_native(process, user))  # type: ignore[misc]
            self.spawn(f"kafka-{user}", lambda process, user=user: self._work_kafka(process, user))  # type: ignore[misc]
        self.spawn("http", self._work_http)
        self.spawn("flood-kafka", self._flood_kafka)
        self.spawn("flood-native", self._flood_native)

    def check(self) -> None:
        """See `Workload`: every node knows what is committed, and nothing else."""
        known = self.history.now()
        for node in self.cluster.nodes:
            book = node.view.access
            require(
                (frozenset(book.users), frozenset(book.acls.values())) == (known.users, known.acls),
                "access-known",
                f"node {node.node_id} knows other users or entries than are committed at version {known.version}",
            )

    def _native(self, node: int) -> str:
        return f"{self.cluster.machines[node].host}:{NATIVE_PORT}"

    # -- who changes it -------------------------------------------------------------------------------------------

    async def _operate(self, process: "Process") -> None:
        draw = process.random
        while not self.stopped:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    connection = await open_connection(self._native(self.any_node(draw)), "operator", None)
                    try:
                        for _ in range(draw.randint(1, ASKS_MAX)):
                            await connection.request(self._change(draw))
                            self.outcomes["access-changes"] += 1
                            await asyncio.sleep(draw.expovariate(1 / OPERATOR_PAUSE_S))
                    finally:
                        await connection.close()
            except (AntiphonError, TimeoutError):
                await asyncio.sleep(OPERATOR_PAUSE_S)

    def _change(self, draw: "Random") -> AlterUser | AlterAcls:
        """Something that is there goes, something that is not comes."""
        known = self.history.now()
        if known.acls and draw.random() < 0.4:
            return AlterAcls(remove=(draw.choice(sorted(known.acls)),))
        if draw.random() < 0.15:
            user = draw.choice(self.users)
            if user in known.users:
                return AlterUser(user, remove=True)
            return AlterUser(user, (credential_of(user),))
        pattern, name = draw.choice(NAMES)
        acl = Acl(
            f"User:{draw.choice([*self.users, '*'])}",
            Resource.TOPIC,
            name,
            draw.choice((Operation.READ, Operation.WRITE, Operation.ALL)),
            pattern,
            Permission.DENY if draw.random() < 0.25 else Permission.ALLOW,
        )
        return AlterAcls(remove=(acl,)) if acl in known.acls else AlterAcls((acl,))

    # -- who works ------------------------------------------------------------------------------------------------

    def _judge_login(self, user: str, node: int, since: Moment | None, *, taken: bool) -> None:
        if since is None:  # it knew nothing, and may know of anything since the set-up now
            since = Moment(self._begun_at)
        self.outcomes["logins"] += 1
        require(
            self.history.could(since, lambda known: (user in known.users) == taken),
            "login",
            f"node {node} {'takes' if taken else 'refuses'} a login of {user}, "
            f"{'who was no user' if taken else 'who was a user'} from version {since.version} on",
        )

    def _judge(
        self,
        user: str,
        node: int,
        operation: Operation,
        topic: str,
        since: Moment | None,
        passed: bool | None,
    ) -> None:
        """A node let a user do something, or denied it; None: neither."""
        if since is None or passed is None:
            self.outcomes["access-unknown"] += 1
            return
        self.outcomes["access-passed" if passed else "access-denied"] += 1
        require(
            self.history.could(since, lambda known: allowed(known, user, operation, topic) == passed),
            "access",
            f"node {node} {'lets' if passed else 'does not let'} {user} {operation} {topic}, which was "
            f"{'denied' if passed else 'allowed'} from version {since.version} on",
            self.shard_ids[topic],
        )

    async def _work_native(self, process: "Process", user: str) -> None:
        draw = process.random
        while not self.stopped:
            node = self.any_node(draw)
            connection = await self._log_in(node, user)
            if connection is None:
                await asyncio.sleep(draw.uniform(0.0, 0.2))
                continue
            try:
                for _ in range(draw.randint(1, ASKS_MAX)):
                    await self._ask_native(connection, node, user, draw)
                    await self.think(process)
                    if connection.lost is not None or self.stopped:
                        break
            finally:
                await connection.close()

    async def _log_in(self, node: int, user: str) -> Connection | None:
        since = self.history.moment(node)
        try:
            async with asyncio.timeout(PATIENCE_S):
                found = await open_connection(
                    self._native(node), "access", None, Account(user, password_of(user))
                )
        except UnauthenticatedError:
            self._judge_login(user, node, since, taken=False)
            return None
        except (AntiphonError, TimeoutError):
            return None
        self._judge_login(user, node, since, taken=True)
        return found

    async def _ask_native(self, connection: Connection, node: int, user: str, draw: "Random") -> None:
        topic, writes = draw.choice(TOPICS), draw.random() < 0.5
        shard_id = self.shard_ids[topic]
        body, payload = (AppendBatch(shard_id), (some_batch(),)) if writes else (Fetch(shard_id, 0), ())
        since = self.history.moment(node)
        passed: bool | None = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                await connection.request(body, payload)
            passed = True
        except AccessDeniedError:
            passed = False
        except NotLeaderError:
            passed = True
        except (AntiphonError, TimeoutError):
            passed = None
        self._judge(user, node, Operation.WRITE if writes else Operation.READ, topic, since, passed)

    async def _work_kafka(self, process: "Process", user: str) -> None:
        draw, kafka = process.random, self._kafka(process)
        while not self.stopped:
            node = self.any_node(draw)
            address = (self.cluster.machines[node].host, KAFKA_PORT)
            try:
                if await self._log_in_kafka(kafka, node, user):
                    for _ in range(draw.randint(1, ASKS_MAX)):
                        await self._ask_kafka(kafka, node, user, draw)
                        await self.think(process)
            except NoAnswerError:
                self.outcomes["access-unknown"] += 1
            kafka.hang_up(address)
            await asyncio.sleep(draw.uniform(0.0, 0.1))
        kafka.close()

    def _kafka(self, process: "Process") -> KafkaClient:
        return KafkaClient(
            [(machine.host, KAFKA_PORT) for machine in self.cluster.machines], process.random, "access"
        )

    async def _log_in_kafka(self, kafka: KafkaClient, node: int, user: str) -> bool:
        """Log in on a new connection. Raises NoAnswerError."""
        address = (self.cluster.machines[node].host, KAFKA_PORT)
        since = self.history.moment(node)
        taken = await log_in_to_kafka(kafka, address, Account(user, password_of(user))) is not None
        self._judge_login(user, node, since, taken=taken)
        return taken

    async def _ask_kafka(self, kafka: KafkaClient, node: int, user: str, draw: "Random") -> None:
        topic, writes = draw.choice(TOPICS), draw.random() < 0.5
        address = (self.cluster.machines[node].host, KAFKA_PORT)
        since = self.history.moment(node)
        if writes:
            answer = await kafka.ask(address, PRODUCE, PRODUCE_VERSION, m.produce_one(topic, some_batch()))
        else:
            answer = await kafka.ask(
                address, FETCH, FETCH_VERSION, m.fetch_one(topic, 0, 0, 1000, total_bytes=1000, min_bytes=0)
            )
        error = answer.topics[0].partitions[0].error_code if answer.topics else code.UNKNOWN_SERVER_ERROR
        passed = False if error == code.TOPIC_AUTHORIZATION_FAILED else True if error in PASSED else None
        self._judge(user, node, Operation.WRITE if writes else Operation.READ, topic, since, passed)

    async def _work_http(self, process: "Process") -> None:
        """Pages are for who has logged in, which takes TLS; without it nobody sees any."""
        draw = process.random
        while not self.stopped:
            host, page = self.cluster.machines[self.any_node(draw)].host, draw.choice(PAGES)
            answer = await page_or_nothing(host, page)
            if answer:
                status = answer.split(b" ", 2)[1]
                require(status == b"401", "page-denied", f"{host} answers {page} with {status!r} to nobody")
            await asyncio.sleep(draw.uniform(0.0, 0.5))

    # -- who takes too much ---------------------------------------------------------------------------------------

    async def _flood_kafka(self, process: "Process") -> None:
        draw, kafka = process.random, self._kafka(process)
        while not self.stopped:
            node = self.any_node(draw)
            address = (self.cluster.machines[node].host, KAFKA_PORT)
            try:
                if await self._log_in_kafka(kafka, node, LIMITED):
                    flood = self._flood(node)
                    while not self.stopped:
                        await kafka.ask(address, PRODUCE, PRODUCE_VERSION, m.produce_one(TOPICS[0], FLOOD))
                        flood.answered()
            except NoAnswerError:
                await asyncio.sleep(draw.uniform(0.0, 0.5))
            kafka.hang_up(address)
        kafka.close()

    async def _flood_native(self, process: "Process") -> None:
        draw = process.random
        while not self.stopped:
            node = self.any_node(draw)
            connection = await self._log_in(node, LIMITED)
            if connection is None:
                await asyncio.sleep(draw.uniform(0.0, 0.5))
                continue
            flood = self._flood(node)
            while connection.lost is None and not self.stopped:
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        await connection.request(AppendBatch(self.shard_ids[TOPICS[0]]), (FLOOD,))
                except (AccessDeniedError, NotLeaderError):
                    flood.answered()
                except (AntiphonError, TimeoutError):
                    break
                else:
                    flood.answered()
            await connection.close()

    def _flood(self, node: int) -> "Flood":
        since = self.history.moment(node)
        known = since is not None and not self.history.could(since, lambda known: LIMITED not in known.quotas)
        return Flood(self, node, since if known else None)


class Flood:
    """What one connection of the user with the quota got through. `since`: the node has known of it; None: it may not."""

    def __init__(self, workload: AccessWorkload, node: int, since: Moment | None) -> None:
        self._workload = workload
        self._node = node
        self._since = since
        self._began_s = workload.now
        self._answered = 0

    def answered(self) -> None:
        """A node has answered another of its requests. The first one over the quota is still answered."""
        self._answered += 1
        self._workload.outcomes["floods"] += 1
        if self._since is None:
            return
        passed_s = self._workload.now - self._began_s
        most = RATE * (HELD_S + FASTER * passed_s)
        sent = (self._answered - 1 - self._workload.history.quota_changes(self._since)) * len(FLOOD)
        require(
            sent <= most,
            "quota",
            f"node {self._node} took {sent:,} bytes of {LIMITED} before another request in {passed_s:.1f} s; "
            f"its quota lets at most {most:,.0f} through",
        )


def some_batch() -> bytes:
    """A record that nobody has to find again."""
    return bytes(build_batch([(None, b"access", (), system.wall_ms())]))


FLOOD: Final = bytes(build_batch([(None, bytes(FLOOD_BYTES), (), 1)]))
