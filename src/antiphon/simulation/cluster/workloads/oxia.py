"""Clients of Oxia's protocol at any node: keys, sessions, sequences, indexes and notifications, while leaders change.

- `linearizable`: each key's history, as for other clients of a table. A refusal by version does not say which was found.
- `own-identity`: a row has the identity of the client that put its value, and the index leads to it.
- `sequence`: no key of a sequence is given twice; what one client is given rises; what was acknowledged is in the log.
- `notified`: what a client is told of a shard is what happened to its keys, each once, in order, over all resumptions.
- `ended-early`: no shard calls a session ended whose client was answered within the time-out.
- What the logs say of sessions is judged by itself (`session_history`).
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import (
    AntiphonError,
    InternalError,
    KeyNotFoundError,
    TimedOutError,
    VersionMismatchError,
)
from antiphon.gateway.protobuf import decode
from antiphon.model.metadata import key_hash
from antiphon.model.rows import Row, Version
from antiphon.oxia import messages as m
from antiphon.records.batch import iter_batches
from antiphon.records.changes import decode_changes
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.oxia_client import PATIENCE_S, SERVICES, CallError, NoEndError, OxiaClient
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.session_history import SessionHistory
from antiphon.simulation.cluster.workloads.table import TableWorkload, one_key
from antiphon.simulation.cluster.world import OXIA_PORT
from antiphon.simulation.linearizability import NO, Operation
from antiphon.simulation.violation import require
from antiphon.table.evaluator import ABSENT

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

SESSION_NOT_FOUND: Final = "SESSION_NOT_FOUND"
INDEX: Final = "by value"
SEQUENCES: Final = tuple(b"number %d" % number for number in range(6))
TIMEOUT_MS: Final = 2_000
BEATS: Final = 4  # of a session's client in a time-out
BESIDE: Final = 0.2  # of puts, that put another key first, in the same request
MILLION: Final = 1_000_000


@workload("oxia_clients", 34, Drawn(one_of(0, 0, 0, 0, 2, 3), "oxia", 0), logs_in=False)
class OxiaWorkload(TableWorkload):
    """Put, get and delete over Oxia's protocol at any node, with identities and an index; keys of a sequence; sessions with
    heartbeats; followers of notifications, which begin anew where they were.

    Checked: each key's history is linearizable; a row names who put it, and the index leads to it; numbers of a sequence
    are given once; notifications are what the log says, each once, in order; a session that is kept does not end; the ends
    of sessions take all of their rows.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "oxia-rows") -> None:
        super().__init__(cluster, name)
        self.model = oxia_key
        self.outcomes = {"ok": 0, "refused": 0, "unknown": 0, "numbers": 0, "told": 0, "beats": 0}
        self.hashes: dict[int, tuple[int, int]] = {}
        self._given: set[bytes] = set()  # keys of sequences
        self._told: dict[tuple[int, int], list[tuple[int, bytes, int | None]]] = {}
        self._fastest = 1.0 + cluster.options.clock_skew_ppm / MILLION

    def begin(self) -> None:
        """See `Workload`."""
        super().begin()
        self.spawn("session", self._live)
        for number, shard_id in enumerate(self.shard_ids):
            self.spawn(f"follower-{number}", partial(self._follow, shard_id))

    def client(self, process: "Process") -> OxiaClient:
        """A client that asks nodes as they are drawn."""
        draw = self.cluster.stream(f"nodes asked by {process.name}")
        nodes = [(machine.host, OXIA_PORT) for machine in self.cluster.machines]
        return OxiaClient(nodes, draw, "grpc-go/1", draw.choice(SERVICES))

    def open_table(self, _db: "AsyncClient", process: "Process") -> "OxiaTable":
        """See `TableWorkload`."""
        return OxiaTable(self, self.client(process), process)

    # -- sequences ----------------------------------------------------------------------------------------------------

    def number_given(self, before: dict[bytes, bytes], key: bytes) -> None:
        """A client was given a key; `before`: the last ones that it was given."""
        self.outcomes["numbers"] += 1
        prefix = key.rpartition(b"-")[0]
        last = before.get(prefix, b"")
        require(last < key, "sequence", f"a client is given {key!r} after {last!r}", self.shard_ids[0])
        before[prefix] = key
        self._given.add(key)

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def _live(self, process: "Process") -> None:
        """Open a session, put a row, keep it for a while, and fall silent or close it."""
        client, draw, shard_id = self.client(process), process.random, self.shard_ids[0]
        count = 0
        while not self.stopped:
            count += 1
            try:
                await self._one_session(client, draw, shard_id, b"own %d" % count)
            except (CallError, NoEndError):
                await asyncio.sleep(0.1)
        client.hang_up()

    async def _one_session(self, client: OxiaClient, draw: Any, shard_id: int, key: bytes) -> None:
        asked_s = self.now
        wanted = m.CreateSessionRequest(
            shard=shard_id, session_timeout_ms=TIMEOUT_MS, client_identity="keeper"
        )
        made = await client.call("CreateSession", wanted, m.CreateSessionResponse)
        session_id, kept_s = made.session_id, asked_s
        put = m.PutRequest(key=key, value=b"%d" % session_id, session_id=session_id, client_identity="keeper")
        await client.call("Write", m.WriteRequest(shard=shard_id, puts=[put]), m.WriteResponse)
        for _ in range(draw.randrange(1, 12)):
            await asyncio.sleep(TIMEOUT_MS / 1000 / BEATS)
            asked_s = self.now
            beat = m.SessionRequest(shard=shard_id, session_id=session_id)
            try:
                await client.call("KeepAlive", beat, m.Empty)
            except NoEndError:
                continue
            except CallError as error:
                self._judge_end(error, shard_id, session_id, kept_s)
                return
            self.outcomes["beats"] += 1
            kept_s = asked_s
        if draw.random() < 0.5:
            await client.call(
                "CloseSession", m.SessionRequest(shard=shard_id, session_id=session_id), m.Empty
            )

    def _judge_end(self, error: CallError, shard_id: int, session_id: int, kept_s: float) -> None:
        until_s = kept_s + TIMEOUT_MS / 1000 / self._fastest
        require(
            error.reason != SESSION_NOT_FOUND or self.now >= until_s,
            "ended-early",
            f"session {session_id} is called ended at {self.now}, and was kept until {until_s}",
            shard_id,
        )

    # -- notifications ------------------------------------------------------------------------------------------------

    async def _follow(self, shard_id: int, process: "Process") -> None:
        """Follow what happens in a shard, at one node after the other, from behind what was told last."""
        client, draw = self.client(process), process.random
        told: list[tuple[int, bytes, int | None]] = []
        after: int | None = None
        while not self.stopped:
            request = m.NotificationsRequest(shard=shard_id, start_offset_exclusive=after)
            try:
                connection, stream_id, stream = await client.begin("GetNotifications", request)
                ends_s = self.now + draw.choice((0.3, 2.0, 10.0))
                while self.now < ends_s and not self.stopped:
                    data = await stream.next(2.0)
                    if data is None:
                        break
                    batch = decode(m.NotificationBatch, data)
                    if after is None:
                        self._told[(shard_id, batch.offset)] = told
                    told += [_told(batch, one) for one in batch.notifications]
                    self.outcomes["told"] += len(batch.notifications)
                    after = batch.offset
                connection.give_up(stream_id)
            except (CallError, NoEndError):
                await asyncio.sleep(0.1)
            if draw.random() < 0.5:
                client.hang_up()
            await asyncio.sleep(draw.choice((0.0, 0.0, 0.5, 2.0)))  # so that there is much to tell at once
        client.hang_up()

    # -- judges -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        super().check()
        history = SessionHistory(self.cluster, self.shard_ids)
        history.read()
        versions: dict[bytes, int] = {}  # of keys of sequences, which a shard that was split off has again
        values: dict[bytes, bytes] = {}
        for shard_id in history.shards:
            changes = [
                change
                for batch in self.cluster.evidence.truth(shard_id).batches
                for _, one in iter_batches(batch.data)
                for change in decode_changes([one])
            ]
            for change in changes:
                if change.key.startswith(b"number") and change.value is not None:
                    known = versions.setdefault(change.key, change.version_id)
                    require(known == change.version_id, "sequence", f"{change.key!r} is put twice", shard_id)
                    key = values.setdefault(change.value, change.key)
                    require(
                        key == change.key, "sequence", f"one put got {key!r} and {change.key!r}", shard_id
                    )
            for (of, after), told in self._told.items():
                if of == shard_id:
                    self._check_told(shard_id, after, told, changes)
        lost = self._given - set(versions)
        require(
            not lost, "sequence", f"{sorted(lost)} were acknowledged and are in no log", self.shard_ids[0]
        )

    def _check_told(self, shard_id: int, after: int, told: list[Any], changes: list[Any]) -> None:
        """What was told is what happened behind `after`, up to somewhere: each change once, in order."""
        happened = [
            (one.key, None if one.value is None else one.version_id) for one in changes if one.offset > after
        ]
        found = [(key, version) for _, key, version in told]
        last = max((offset for offset, _, _ in told), default=after)
        wanted = [
            (one.key, None if one.value is None else one.version_id)
            for one in changes
            if after < one.offset <= last
        ]
        require(
            sorted(found, key=repr) == sorted(wanted, key=repr) and len(found) <= len(happened),
            "notified",
            f"from {after} to {last} a client was told {len(found)} changes, and {len(wanted)} happened",
            shard_id,
        )


def _told(batch: m.NotificationBatch, one: m.NotificationEntry) -> tuple[int, bytes, int | None]:
    is_gone = one.value.type == m.NotificationType.DELETED
    return batch.offset, one.key or b"", None if is_gone else (one.value.version_id or 0)


class OxiaTable:
    """A table by Oxia's protocol, at nodes that are drawn: what `TableWorkload` needs of one."""

    def __init__(self, owner: OxiaWorkload, client: OxiaClient, process: "Process") -> None:
        self._owner = owner
        self._client = client
        self._draw = owner.cluster.stream(f"what {process.name} does beside")
        self._name = process.name
        self._serial = 0
        self._given: dict[bytes, bytes] = {}  # the last key of each sequence
        self._assigned: list[tuple[int, int]] = []  # last hash, shard

    async def _shard_of(self, key: bytes) -> int:
        """The shard of a key, by the map that the client has; it asks for one where it has none."""
        if not self._assigned:
            await self._ask_for_map()
        return next(shard for last, shard in self._assigned if key_hash(key) <= last)

    async def _ask_for_map(self) -> None:
        request = m.ShardAssignmentsRequest(namespace=self._owner.name)
        try:
            connection, stream_id, stream = await self._client.begin("GetShardAssignments", request)
            data = await stream.next(PATIENCE_S)
            connection.give_up(stream_id)
        except (NoEndError, CallError) as error:
            raise TimedOutError(str(error)) from None
        found = decode(m.ShardAssignments, data or b"").namespaces[0].value.assignments
        self._assigned = sorted((one.hashes.last, one.shard) for one in found)

    async def _call(self, method: str, request: Any, kind: Any) -> Any:
        try:
            return await self._client.call(method, request, kind)
        except NoEndError as error:
            raise TimedOutError(str(error)) from None
        except CallError as error:
            if error.reason == "SHARD_NOT_FOUND" and self._draw.random() < 0.3:  # the map may come late
                self._assigned = []
            raise InternalError(str(error)) from None
        finally:
            if self._draw.random() < 0.1:
                self._client.hang_up()

    async def find(self, key: str, *, timeout_s: float) -> Row | None:  # noqa: ARG002 (as of other tables)
        """The row of a key."""
        name = key.encode()
        shard_id = await self._shard_of(name)
        request = m.ReadRequest(shard=shard_id, gets=[m.GetRequest(key=name, include_value=True)])
        (found,) = (await self._call("Read", request, m.ReadResponse)).gets
        if found.status != m.Status.OK:
            return None
        version = found.version
        value = bytes(found.value or b"")
        require(
            version.client_identity == _identity(value),
            "own-identity",
            f"the row {value!r} of {key!r} is said to be put by {version.client_identity!r}",
            shard_id,
        )
        return Row(name, value, _version(version))

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        expected_version: int | None,
        timeout_s: float,  # noqa: ARG002 (as of other tables)
    ) -> Version:
        """Set a key."""
        if self._draw.random() < 0.2:
            await self._number()
        shard_id = await self._shard_of(key.encode())
        puts = [_put(key.encode(), value, expected_version)]
        if self._draw.random() < BESIDE:
            puts.insert(0, _put(await self._beside(shard_id), value, None))
        answer = await self._call("Write", m.WriteRequest(shard=shard_id, puts=puts), m.WriteResponse)
        result = answer.puts[-1]
        if result.status != m.Status.OK:
            raise VersionMismatchError("refused", actual=ABSENT - 1)
        return _version(result.version)

    async def _beside(self, shard_id: int) -> bytes:
        """A key of the shard that nobody reads: what indexes lead to it is looked at in the end."""
        number = 0
        while await self._shard_of(b"beside %d" % number) != shard_id:
            number += 1
        return b"beside %d" % number

    async def _number(self) -> None:
        """Get a key of the sequence."""
        self._serial += 1
        value = f"{self._name}-{self._serial}".encode()
        prefix = self._draw.choice(SEQUENCES)
        put = m.PutRequest(key=prefix, value=value, partition_key=prefix, sequence_key_delta=[1])
        try:
            request = m.WriteRequest(shard=await self._shard_of(prefix), puts=[put])
            answer = await self._call("Write", request, m.WriteResponse)
        except AntiphonError:
            return
        self._owner.number_given(self._given, answer.puts[0].key)

    async def delete(self, key: str, *, expected_version: int | None, timeout_s: float) -> None:  # noqa: ARG002
        """Remove a key."""
        removal = m.DeleteRequest(key=key.encode(), expected_version_id=expected_version)
        request = m.WriteRequest(shard=await self._shard_of(key.encode()), deletes=[removal])
        (result,) = (await self._call("Write", request, m.WriteResponse)).deletes
        if result.status == m.Status.KEY_NOT_FOUND:
            raise KeyNotFoundError("not there")
        if result.status != m.Status.OK:
            raise VersionMismatchError("refused", actual=ABSENT - 1)


def _put(key: bytes, value: bytes, expected_version: int | None) -> m.PutRequest:
    return m.PutRequest(
        key=key,
        value=value,
        expected_version_id=expected_version,
        client_identity=_identity(value),
        secondary_indexes=[m.SecondaryIndex(index_name=INDEX, secondary_key=value.decode())],
    )


def _identity(value: bytes) -> str:
    return "client " + value.decode().split("-", 1)[0]


def _version(found: m.Version) -> Version:
    return Version(
        found.version_id, found.modifications_count, found.created_timestamp, found.modified_timestamp
    )


def oxia_key(state: Any, operation: Operation) -> Any:
    """`one_key`, where a refusal does not say what was found (-2)."""
    if operation.what != "get" and operation.result and operation.result[0] == "mismatch":
        expected = operation.argument[0]
        if state is None:
            return state if expected != ABSENT else NO
        return state if state[0] is None or state[0] != expected else NO
    return one_key(state, operation)
