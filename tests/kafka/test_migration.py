"""Groups with members that go over from one of Kafka's protocols to the other, by bare sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.coordination.cluster_records import FORMAT
from antiphon.coordination.consumer_terms import Catalog, TopicFacts
from antiphon.errors import DiskFullError, ProtocolViolationError, UnavailableError
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups import migration, mixed
from antiphon.kafka.groups.classic_row import ClassicRow, decoded
from antiphon.kafka.groups.classic_rows import row_key
from antiphon.kafka.groups.subscription import assigned_partitions, assignment_bytes, subscription_of
from antiphon.kafka.groups.types import Join
from antiphon.kafka.messages import groups
from antiphon.kafka.primitives import put_count, put_i16, put_i32, put_nullable_bytes, put_nullable_string
from antiphon.model.metadata import Kind
from antiphon.model.requests import TableScan, TableWrite
from antiphon.node.config import ConsumerGroups
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.raw import Connect, RawClient, ask, listening
from tests.kafka.test_consumer_groups import Member, describe
from tests.node.in_process import in_virtual_time

PARTITIONS = 4
REJOIN = code.REBALANCE_IN_PROGRESS


def subscribed(version: int, *topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    out = bytearray()
    put_i16(out, version)
    put_count(out, len(topics))
    for topic in topics:
        put_nullable_string(out, topic)
    put_nullable_bytes(out, None)
    if version >= 1:
        put_count(out, len(owned or {}))
        for topic, partitions in (owned or {}).items():
            put_nullable_string(out, topic)
            put_count(out, len(partitions))
            for partition in partitions:
                put_i32(out, partition)
    if version >= 2:
        put_i32(out, 7)
    if version >= 3:
        put_nullable_string(out, "rack")
    return bytes(out)


@dataclass
class Classic:
    """A member of the classic protocol as a client has one; an eager one."""

    client: RawClient
    instance: str | None = None
    session_ms: int = 6_000
    topics: tuple[str, ...] = ("t",)
    name: str = ""
    generation: int = -1
    leads: bool = False
    members: list[str] = field(default_factory=list)
    owned: list[int] = field(default_factory=list)

    async def join(self, metadata: bytes | None = None) -> int:
        said = subscribed(1, *self.topics) if metadata is None else metadata
        request = groups.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=5_000,
            member_id=self.name,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[groups.JoinProtocol(name="range", metadata=said)],
        )
        answer = await ask(self.client, request, 5)
        if answer.error_code == code.MEMBER_ID_REQUIRED:
            self.name = answer.member_id
            return await self.join(metadata)
        if answer.error_code == code.NONE:
            self.name, self.generation = answer.member_id, answer.generation_id
            self.leads = answer.leader == self.name
            self.members = [each.member_id for each in answer.members]
            self.owned = []
        found: int = answer.error_code
        return found

    async def sync(self) -> int:
        """The leader gives each member its part, in turn."""
        parts = {
            name: [p for p in range(PARTITIONS) if p % len(self.members) == at]
            for at, name in enumerate(self.members)
        }
        request = groups.SyncGroupRequest(
            group_id="g",
            generation_id=self.generation,
            member_id=self.name,
            group_instance_id=self.instance,
            assignments=[
                groups.SyncAssignment(
                    member_id=name, assignment=assignment_bytes(1, (("t", tuple(partitions)),))
                )
                for name, partitions in (parts if self.leads else {}).items()
            ],
        )
        answer = await ask(self.client, request, 3)
        if answer.error_code == code.NONE:
            told = assigned_partitions(answer.assignment, 100)
            self.owned = [p for _, partitions in told for p in partitions]
        found: int = answer.error_code
        return found

    async def heartbeat(self) -> int:
        request = groups.HeartbeatRequest(
            group_id="g", generation_id=self.generation, member_id=self.name, group_instance_id=self.instance
        )
        found: int = (await ask(self.client, request, 3)).error_code
        return found

    async def commit(self, offset: int, generation: int | None = None) -> int:
        one = groups.CommitPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
        request = groups.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.name,
            group_instance_id=self.instance,
            topics=[groups.CommitTopic(name="t", partitions=[one])],
        )
        found: int = (await ask(self.client, request, 7)).topics[0].partitions[0].error_code
        return found

    async def work(self) -> None:
        """Do as a client does."""
        found = await self.heartbeat()
        if found == REJOIN:
            await self.rejoin()
        elif found == code.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(0.1)
        else:
            assert found == code.NONE, found

    async def rejoin(self) -> None:
        found = await self.join()
        for _ in range(20):
            if found == code.COORDINATOR_LOAD_IN_PROGRESS:
                await asyncio.sleep(0.1)
                found = await self.join()
        assert found == code.NONE, found
        assert await self.sync() in {code.NONE, REJOIN}

    async def leave(self) -> int:
        request = groups.LeaveGroupRequest(group_id="g", members=[groups.LeavingMember(member_id=self.name)])
        found: int = (await ask(self.client, request, 4)).error_code
        return found


@asynccontextmanager
async def cluster(policy: str = "bidirectional", nodes: int = 3) -> AsyncIterator[tuple[KafkaNodes, Connect]]:
    settings = ConsumerGroups(session_timeout_ms=3_000, max_size=4, migration_policy=policy)  # type: ignore[arg-type]
    async with listening(nodes, consumer_groups=settings) as (served, connect):
        await served.create("t", shards=PARTITIONS)
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        await served.lead("__groups", 0)
        yield served, connect


async def both(connect: Connect, **more: Any) -> tuple[Classic, Classic]:
    """Two members of a classic group that is stable."""
    one, two = Classic(await connect(0), **more), Classic(await connect(0), **more)
    await asyncio.gather(one.join(), two.join())
    assert sum(await asyncio.gather(one.sync(), two.sync())) == code.NONE
    assert sorted(one.owned + two.owned) == list(range(PARTITIONS))
    return one, two


async def settle(*members: Classic | Member) -> None:
    for _ in range(12):
        for member in members:
            await (member.work() if isinstance(member, Classic) else member.heartbeat())
            owned = [p for each in members for p in each.owned]
            assert len(owned) == len(set(owned)), members
    assert sorted(p for each in members for p in each.owned) == list(range(PARTITIONS))


async def go(member: Member) -> None:
    """Leave; what becomes of the group is decided soon after."""
    await member.heartbeat(member_epoch=-1)
    await asyncio.sleep(0.1)


async def rows(served: KafkaNodes) -> dict[str, bytes]:
    host = served.host("__groups")
    gateway = served.nodes.nodes[host.services.node_id].gateway
    reply = await gateway.table_scan(TableScan(host.shard_id, b"c", b"d", limit=100))
    return {row.key.decode(): row.value or b"" for row in reply.rows if row is not None}


async def classic_row(served: KafkaNodes) -> ClassicRow | None:
    found = (await rows(served)).get(row_key("g").decode())
    return None if found is None else decoded(found)


@in_virtual_time
async def test_a_classic_group_is_upgraded_and_downgraded_with_its_members() -> None:
    async with cluster() as (served, connect):
        one, two = await both(connect)
        assert await one.commit(10) == code.NONE
        new = Member(await connect(0), "new")
        await new.heartbeat()
        assert new.owned == []
        assert await classic_row(served) is None
        assert sum(key.startswith("consumer/g/member/") for key in await rows(served)) == 3
        assert await one.heartbeat() == REJOIN
        assert await one.commit(11) == code.NONE, "before it joins again it commits what it has done"
        before = one.generation
        await settle(one, two, new)
        assert await one.commit(12, before) == code.ILLEGAL_GENERATION
        assert await one.commit(12) == code.NONE
        kinds = {each.member_id: each.member_type for each in (await describe(one.client)).members}
        assert kinds == {one.name: 0, two.name: 0, "new": 1}
        await go(new)
        assert list(await rows(served)) == ["classic/g"]
        assert await one.heartbeat() == REJOIN
        assert await one.commit(13) == code.NONE, "its generation goes on"
        await asyncio.gather(one.join(), two.join())
        assert sum(await asyncio.gather(one.sync(), two.sync())) == code.NONE
        assert sorted(one.owned + two.owned) == list(range(PARTITIONS))


@in_virtual_time
async def test_successors_go_on_with_members_of_both_protocols() -> None:
    async with cluster() as (served, connect):
        one, two = await both(connect)
        new = Member(await connect(0), "new")
        await new.heartbeat()
        await served.lead("__groups", 1)
        for member in (one, two, new):
            member.client = await connect(1)
        await settle(one, two, new)
        assert await one.commit(1) == code.NONE
        await served.lead("__groups", 2)
        for member in (one, two, new):
            member.client = await connect(2)
        assert [await one.heartbeat(), await two.heartbeat()] == [code.NONE] * 2
        await go(new)
        assert await classic_row(served) is not None
        await served.lead("__groups", 0)
        for member in (one, two):
            member.client = await connect(0)
        assert await one.heartbeat() == REJOIN, "the partitions of who left would be nobody's"
        assert await one.commit(2) == code.NONE
        await asyncio.gather(one.rejoin(), two.rejoin())
        assert sorted(one.owned + two.owned) == list(range(PARTITIONS))


@in_virtual_time
async def test_a_group_of_the_consumer_protocol_takes_classic_members_and_becomes_classic() -> None:
    async with cluster() as (served, connect):
        new = Member(await connect(0), "new")
        await new.heartbeat()
        one = Classic(await connect(0))
        await one.rejoin()
        assert one.owned == [], "they are given up first"
        await settle(new, one)
        await asyncio.sleep(2.0)
        assert await one.heartbeat() == code.NONE
        await asyncio.sleep(2.0)  # the other one is silent
        assert await one.heartbeat() == REJOIN
        found = await classic_row(served)
        assert found is not None
        assert found.generation == one.generation
        await one.rejoin()
        assert one.owned == list(range(PARTITIONS))
        assert one.leads


@in_virtual_time
async def test_silent_members_of_either_protocol_are_gone_after_their_own_sessions() -> None:
    async with cluster("upgrade") as (_, connect):
        one = Classic(await connect(0), session_ms=6_000)
        await one.join()
        await one.sync()
        new = Member(await connect(0), "new")
        await new.heartbeat()
        await settle(one, new)
        for _ in range(5):
            await asyncio.sleep(1.0)
            await new.heartbeat()
        assert len((await describe(one.client)).members) == 2
        for _ in range(2):
            await asyncio.sleep(1.0)
            await new.heartbeat()
        await settle(new)
        assert await one.heartbeat() == code.UNKNOWN_MEMBER_ID


@in_virtual_time
async def test_who_is_called_and_does_not_come_is_gone() -> None:
    async with cluster() as (_, connect):
        one, two = await both(connect, session_ms=30_000)
        new = Member(await connect(0), "new")
        await new.heartbeat()
        for _ in range(6):
            await two.work()
            await one.heartbeat()
            await new.heartbeat()
            await asyncio.sleep(1.0)
        await settle(two, new)
        assert await one.heartbeat() == code.UNKNOWN_MEMBER_ID


@in_virtual_time
async def test_static_members_change_their_protocol_and_keep_their_place() -> None:
    async with cluster() as (served, connect):
        one = Classic(await connect(0), instance="i")
        two = Classic(await connect(0), instance="j")
        await asyncio.gather(one.join(), two.join())
        assert sum(await asyncio.gather(one.sync(), two.sync())) == code.NONE
        before = one.owned
        new = Member(await connect(0), "new", more={"instance_id": "i"})
        await new.heartbeat()
        assert new.owned == before
        assert await one.heartbeat() == code.FENCED_INSTANCE_ID
        assert await one.commit(1) == code.FENCED_INSTANCE_ID
        assert await one.join() == code.FENCED_INSTANCE_ID
        await settle(two, new)
        back = Classic(await connect(0), instance="i")
        await back.join()
        await asyncio.sleep(0.1)
        assert (await new.ask()).error_code in {
            code.FENCED_INSTANCE_ID,
            code.GROUP_ID_NOT_FOUND,
            code.UNKNOWN_MEMBER_ID,
        }
        found = await classic_row(served)
        assert found is not None
        assert {each.instance_id for each in found.members} == {"i", "j"}


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [("disabled", False, False), ("upgrade", True, False), ("downgrade", False, True)],
)
def test_the_policy_says_in_which_direction(policy: str, up: bool, down: bool) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with cluster(policy) as (served, connect):
            one, _ = await both(connect)
            new = Member(await connect(0), "new")
            answer = await new.ask()
            assert answer.error_code == (code.NONE if up else code.GROUP_ID_NOT_FOUND)
            assert (await classic_row(served) is None) == up
        async with cluster(policy) as (served, connect):
            new, one = Member(await connect(0), "new"), Classic(await connect(0))
            await new.heartbeat()
            joined = await one.join()
            assert joined == (code.INCONSISTENT_GROUP_PROTOCOL if policy == "disabled" else code.NONE)
            if joined == code.NONE:
                await one.sync()
                await settle(one, new)
                await go(new)
                assert (await classic_row(served) is not None) == down
                if not down:
                    await settle(one)

    scenario()


@in_virtual_time
async def test_while_a_node_is_of_an_earlier_version_groups_stay_what_they_are() -> None:
    async with cluster() as (served, connect):
        one, _ = await both(connect)
        new = Member(await connect(0), "new")
        with patch.object(migration, "MIXED_FORMAT", FORMAT + 1):  # which no node says that it reads
            assert (await new.ask()).error_code == code.GROUP_ID_NOT_FOUND
        await new.heartbeat()
        with patch.object(migration, "MIXED_FORMAT", FORMAT + 1):
            other = Classic(await connect(0))
            assert await other.join() == code.INCONSISTENT_GROUP_PROTOCOL
            assert await one.heartbeat() == REJOIN, "who is in it stays in it"
        assert await classic_row(served) is None


@contextmanager
def one_lost(
    served: KafkaNodes, is_wanted: Callable[[TableWrite], bool], *, takes_effect: bool
) -> Iterator[list[TableWrite]]:
    """The outcome of the first write that is wanted is not known; gives that write, once it came."""
    gateway = served.first.gateway
    write, lost = gateway.table_write, list[TableWrite]()

    async def loses(request: TableWrite) -> Any:
        if lost or not is_wanted(request):
            return await write(request)
        lost.append(request)
        if takes_effect:
            await write(request)
            raise UnavailableError("nobody knows")
        raise DiskFullError("no room")

    with patch.object(gateway, "table_write", loses):
        yield lost


@pytest.mark.parametrize("takes_effect", [False, True])
def test_an_upgrade_that_nobody_knows_of(takes_effect: bool) -> None:
    """The group goes on as the table has it."""

    @in_virtual_time
    async def scenario() -> None:
        async with cluster(nodes=1) as (served, connect):
            one, two = await both(connect)
            new = Member(await connect(0), "new")
            with one_lost(served, lambda request: len(request.ops) > 1, takes_effect=takes_effect) as lost:
                assert (await new.ask()).error_code != code.NONE
                await asyncio.sleep(2.0)
                assert lost
                assert (await classic_row(served) is None) == takes_effect
                found = await one.heartbeat()
                assert found == (REJOIN if takes_effect else code.NONE)
            await new.heartbeat()
            await settle(one, two, new)
            await new.heartbeat(member_epoch=-1)
            await asyncio.sleep(0.1)
            assert await classic_row(served) is not None

    scenario()


@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_downgrade_that_nobody_knows_of(takes_effect: bool) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with cluster(nodes=1) as (served, connect):
            one, two = await both(connect)
            new = Member(await connect(0), "new")
            await new.heartbeat()
            await settle(one, two, new)

            def names_the_row(request: TableWrite) -> bool:
                return any(op.key == row_key("g") for op in request.ops if hasattr(op, "key"))

            with one_lost(served, names_the_row, takes_effect=takes_effect) as lost:
                await new.heartbeat(member_epoch=-1)
                await asyncio.sleep(0.5)
                assert lost
                assert await one.heartbeat() == REJOIN
                assert await one.commit(3) == code.NONE
                await asyncio.sleep(1.0)
                await asyncio.gather(one.rejoin(), two.rejoin())
            assert await one.heartbeat() in {code.NONE, REJOIN}
            assert await classic_row(served) is not None
            await asyncio.gather(one.rejoin(), two.rejoin())
            assert sorted(one.owned + two.owned) == list(range(PARTITIONS))

    scenario()


@in_virtual_time
async def test_bytes_of_strangers_make_no_group_of_another_kind() -> None:
    async with cluster(nodes=1) as (served, connect):
        one = Classic(await connect(0))
        assert await one.join(metadata=b"\x00\x01\x7f\xff\xff\xff") == code.NONE
        await one.sync()
        new = Member(await connect(0), "new")
        assert (await new.ask()).error_code == code.GROUP_ID_NOT_FOUND
        assert await one.heartbeat() == code.NONE
        assert await classic_row(served) is not None
        await one.leave()
        await new.heartbeat()
        for metadata in (b"", b"\xff\xff", b"\x00\x01\x7f\xff\xff\xff", subscribed(1, "t")[:-1]):
            assert await Classic(await connect(0)).join(metadata) == code.INCONSISTENT_GROUP_PROTOCOL
        assert await Classic(await connect(0), session_ms=1).join() == code.INVALID_SESSION_TIMEOUT
        assert await Classic(await connect(0)).join(bytes(300_000)) == code.INVALID_REQUEST


@in_virtual_time
async def test_a_classic_group_that_rebalances_is_upgraded_after_that() -> None:
    async with cluster() as (_, connect):
        one, two = await both(connect)
        joining = asyncio.create_task(one.join())
        await asyncio.sleep(0.01)
        other = Classic(await connect(0))
        coming = asyncio.create_task(other.join())
        await asyncio.sleep(0.01)
        new = Member(await connect(0), "new")
        assert (await new.ask()).error_code == code.COORDINATOR_LOAD_IN_PROGRESS
        await asyncio.gather(two.join(), joining, coming)
        assert (await new.ask()).error_code == code.COORDINATOR_LOAD_IN_PROGRESS
        await asyncio.gather(one.sync(), two.sync(), other.sync())
        await new.heartbeat()
        await settle(one, two, other, new)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 9])
def test_what_members_say_of_themselves(version: int) -> None:
    said = subscription_of(
        subscribed(version, "t", "u", owned={"t": [0, 3]}) + (b"later" if version > 3 else b"")
    )
    assert said.version == version
    assert said.topics == ("t", "u")
    assert said.owned == (() if version < 1 else (("t", 0), ("t", 3)))
    assert said.rack_id == (None if version < 3 else "rack")
    told = assignment_bytes(version, (("t", (0, 3)),))
    assert told[:2] == min(version, 3).to_bytes(2)
    assert assigned_partitions(told, 100) == (("t", (0, 3)),)


def test_a_member_gets_topics_that_it_may_know_of_and_has_partitions_that_there_are() -> None:
    metadata = subscribed(1, "t", "secret", owned={"t": [0, 9, -1], "gone": [0]})
    request = Join("m", None, "c", "h", 6_000, 5_000, "consumer", (("range", metadata),), "new")
    catalog = Catalog(1, {"t": TopicFacts(b"t" * 16, 4), "secret": TopicFacts(b"s" * 16, 4)})
    asked = mixed.join_of(request, catalog, lambda name: name != "secret")
    assert asked.topics == ("t",)
    assert asked.owned == {(b"t" * 16, 0)}
    with pytest.raises(ProtocolViolationError):
        mixed.join_of(request._replace(protocols=(("range", b""),)), catalog, lambda _: True)
