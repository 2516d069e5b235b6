"""Share groups by bare sockets: sessions, acknowledgements, locks, another leader, rights, tools."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from antiphon.kafka import error_codes as code
from antiphon.kafka.api import SHARE_FETCH
from antiphon.kafka.groups.share_partitions import SharePartitions
from antiphon.kafka.messages import admin
from antiphon.kafka.messages import share_groups as m
from antiphon.kafka.messages.consumer_groups import TopicPartitions
from antiphon.kafka.schema import decode, encode
from antiphon.model.metadata import Kind
from antiphon.node.config import ShareGroups
from antiphon.records.batch import iter_batches
from antiphon.simulation.cluster.kafka_messages import ShareFetchResponse
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.raw import Connect, RawClient, alter_configs, ask, batch, listening
from tests.node.in_process import in_virtual_time

FAST = ShareGroups(
    session_timeout_ms=3_000, max_size=3, record_lock_duration_ms=1_000, delivery_count_limit=3
)
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
GROUP = 32
Acks = dict[int, list[tuple[int, int, list[int]]]]  # by partition: first, last, types


@dataclass
class Member:
    """A member as a client has one, with a share session on one connection."""

    client: RawClient
    topic_id: bytes
    name: str = "1"
    group: str = "g"
    epoch: int = 0
    session: int = 0
    owned: list[int] = field(default_factory=list)

    async def heartbeat(self, **changed: Any) -> Any:
        said: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.name,
            "member_epoch": self.epoch,
            "subscribed_topic_names": ["t"],
        }
        answer = await ask(self.client, m.ShareGroupHeartbeatRequest(**{**said, **changed}))
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = [p for each in answer.assignment.topic_partitions for p in each.partitions]
        return answer

    def _topics(self, kind: Any, one: Any, acks: Acks, more: list[int]) -> list[Any]:
        partitions = [
            one(
                partition_index=partition,
                acknowledgement_batches=[
                    m.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                    for first, last, types in acks.get(partition, [])
                ],
            )
            for partition in sorted({*acks, *more})
        ]
        return [kind(topic_id=self.topic_id, partitions=partitions)] if partitions else []

    async def fetch(self, acks: Acks | None = None, version: int = 2, **changed: Any) -> Any:
        more = [0] if not self.session else []
        said: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.session,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_records": 100,
            "batch_size": 100,
            "topics": self._topics(m.ShareTopicWanted, m.SharePartitionWanted, acks or {}, more),
            "forgotten_topics_data": [],
        }
        request = m.ShareFetchRequest(**{**said, **changed})
        sent = self.client.send(SHARE_FETCH, version, encode(request, version, flexible=True))
        body = await self.client.receive(sent)
        answer = decode(ShareFetchResponse, memoryview(body)[1:], version, flexible=True)
        self.session += not answer.error_code
        return answer

    async def take(self, acks: Acks | None = None, **changed: Any) -> list[tuple[int, int, int]]:
        """What is acquired of partition 0; the bytes have it."""
        answer = await self.fetch(acks, **changed)
        assert answer.error_code == code.NONE, answer
        found = [one for topic in answer.responses for one in topic.partitions if one.acquired_records]
        if not found:
            return []
        (one,) = found
        assert (one.error_code, one.acknowledge_error_code) == (0, 0), one
        acquired = [(e.first_offset, e.last_offset, e.delivery_count) for e in one.acquired_records]
        have = {
            offset
            for header, _ in iter_batches(memoryview(one.records))
            for offset in range(header.base_offset, header.next_offset)
        }
        assert all(offset in have for first, last, _ in acquired for offset in range(first, last + 1))
        return acquired

    async def acknowledge(self, acks: Acks, version: int = 2, **changed: Any) -> Any:
        said: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.session,
            "topics": self._topics(m.ShareTopicWanted, m.SharePartitionWanted, acks, []),
        }
        answer = await ask(self.client, m.ShareAcknowledgeRequest(**{**said, **changed}), version)
        self.session += not answer.error_code
        return answer

    async def accept(self, first: int, last: int, kind: int = ACCEPT, **changed: Any) -> int:
        answer = await self.acknowledge({0: [(first, last, [kind])]}, **changed)
        assert answer.error_code == code.NONE, answer
        found: int = answer.responses[0].partitions[0].error_code
        return found


async def configure(client: RawClient, group: str = "g", **settings: str | None) -> int:
    changes = [
        (f"share.{name.replace('_', '.')}", int(value is None), value) for name, value in settings.items()
    ]
    found: int = (await alter_configs(client, GROUP, group, changes)).error_code
    return found


@dataclass
class Scene:
    served: KafkaNodes
    connect: Connect
    topic_id: bytes

    async def member(self, name: str = "1", at: int = 0, group: str = "g") -> Member:
        """One that has joined."""
        found = Member(await self.connect(at), self.topic_id, name, group)
        answer = await found.heartbeat()
        assert answer.error_code == code.NONE, answer
        return found

    async def append(self, count: int, batches: int = 1) -> None:
        for _ in range(batches):
            await self.served.append("t", batch(*[b"x"] * count))


@asynccontextmanager
async def a_group(nodes: int = 1, shards: int = 1, **config: Any) -> AsyncIterator[Scene]:
    async with listening(nodes, share_groups=FAST, **config) as (served, connect):
        topic = await served.create("t", shards=shards)
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        await served.lead("__groups", 0)
        await served.lead("t", 0)
        assert await configure(await connect(0), auto_offset_reset="earliest") == code.NONE
        yield Scene(served, connect, topic.topic_id)


@in_virtual_time
async def test_records_are_acquired_acknowledged_and_given_to_nobody_again() -> None:
    async with a_group() as scene:
        await scene.append(5)
        one, two = await scene.member("1"), await scene.member("2")
        assert one.owned == two.owned == [0], "both read the only partition"
        assert await one.take() == [(0, 4, 1)]
        assert await two.take() == []
        assert await one.accept(0, 2) == code.NONE
        assert await one.accept(3, 4, RELEASE) == code.NONE
        assert await two.take() == [(3, 4, 2)]
        assert await two.take({0: [(3, 3, [ACCEPT]), (4, 4, [REJECT])]}) == []
        assert await one.take() == []
        await scene.append(2)
        assert await one.take() == [(5, 6, 1)]


@in_virtual_time
async def test_one_type_for_each_record_and_gaps() -> None:
    async with a_group() as scene:
        await scene.append(5)
        one = await scene.member()
        assert await one.take() == [(0, 4, 1)]
        types = [ACCEPT, RELEASE, 0, RELEASE, REJECT]
        assert (await one.acknowledge({0: [(0, 4, types)]})).responses[0].partitions[
            0
        ].error_code == code.NONE
        assert await one.take() == [(1, 1, 2), (3, 3, 2)]


@in_virtual_time
async def test_a_lock_ends_and_the_limit_is_kept() -> None:
    async with a_group() as scene:
        await scene.append(2)
        one = await scene.member()
        for deliveries in (1, 2, 3):
            assert await one.take(max_wait_ms=2_000) == [(0, 1, deliveries)]
            await asyncio.sleep(0.9)
            assert await one.take() == [], "the lock has not ended"
            await asyncio.sleep(0.2)
        assert await one.take(max_wait_ms=1_500) == []
        assert await one.accept(0, 1) == code.NONE, "it is before the start offset: whatever is said of it"
        await scene.append(1)
        assert await one.take() == [(2, 2, 1)]
        await asyncio.sleep(1.1)
        assert await one.accept(2, 2) == code.INVALID_RECORD_STATE


@in_virtual_time
async def test_a_lock_is_renewed() -> None:
    async with a_group() as scene:
        await scene.append(2)
        one, two = await scene.member("1"), await scene.member("2")
        assert await one.take() == [(0, 1, 1)]
        await asyncio.sleep(0.8)
        assert await one.accept(0, 1, RENEW, is_renew_ack=True) == code.NONE
        await asyncio.sleep(0.8)
        assert await two.take() == []
        assert await one.accept(0, 1, RENEW) == code.INVALID_REQUEST, "the request does not say so"
        assert await configure(one.client, renew_acknowledge_enable="false") == code.NONE
        await one.accept(0, 1, RENEW, is_renew_ack=True)  # a fetch or a renewal hears of it
        await two.take()
        assert await one.accept(0, 1, RENEW, is_renew_ack=True) == code.INVALID_REQUEST


@in_virtual_time
async def test_a_fetch_waits_for_records_and_for_locks_that_end() -> None:
    async with a_group() as scene:
        one, two = await scene.member("1"), await scene.member("2")
        assert await one.take() == []
        waiting = asyncio.create_task(one.take(max_wait_ms=5_000))
        await asyncio.sleep(0.1)
        await scene.append(3)
        assert await waiting == [(0, 2, 1)]
        assert await two.take() == []
        waiting = asyncio.create_task(two.take(max_wait_ms=5_000))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        assert await waiting == [(0, 2, 2)], "its lock has ended"


@in_virtual_time
async def test_whole_batches_or_no_more_than_asked_for() -> None:
    async with a_group() as scene:
        await scene.append(4, batches=3)
        one = await scene.member()
        assert await one.take(max_records=5, batch_size=3) == [(0, 2, 1), (3, 5, 1), (6, 7, 1)]
        assert await one.take(max_records=1, share_acquire_mode=1) == [(8, 8, 1)]
        assert await one.take(max_records=2, share_acquire_mode=1) == [(9, 10, 1)]
        assert await one.take(max_bytes=1) == [(11, 11, 1)], "the first batch comes however large it is"


@in_virtual_time
async def test_sessions() -> None:
    async with a_group() as scene:
        await scene.append(2)
        one = await scene.member()
        assert (await one.acknowledge({})).error_code == code.INVALID_SHARE_SESSION_EPOCH, "0 opens none"
        assert (await one.fetch(share_session_epoch=1)).error_code == code.SHARE_SESSION_NOT_FOUND
        bad = await one.fetch({0: [(0, 0, [ACCEPT])]})
        assert bad.error_code == code.INVALID_REQUEST, "nothing is acknowledged with a first fetch"
        assert await one.take() == [(0, 1, 1)]
        assert (await one.fetch(share_session_epoch=7)).error_code == code.INVALID_SHARE_SESSION_EPOCH
        topics = [TopicPartitions(topic_id=scene.topic_id, partitions=[0])]
        await scene.append(1)
        assert await one.take(forgotten_topics_data=topics) == []
        answer = await one.acknowledge({0: [(0, 0, [ACCEPT])]}, share_session_epoch=-1)
        assert answer.responses[0].partitions[0].error_code == code.NONE
        assert (await one.fetch()).error_code == code.SHARE_SESSION_NOT_FOUND
        one.session = 0
        assert await one.take() == [(2, 2, 1)], "what it had of a partition that it forgot is locked still"
        await asyncio.sleep(1.1)
        assert await one.take() == [(1, 2, 2)]


@in_virtual_time
async def test_what_a_closed_session_had_counts_as_not_delivered() -> None:
    async with a_group() as scene:
        await scene.append(2)
        one, two = await scene.member("1"), await scene.member("2")
        assert await one.take() == [(0, 1, 1)]
        assert (await one.acknowledge({}, share_session_epoch=-1)).error_code == code.NONE
        assert await two.take() == [(0, 1, 1)]


@in_virtual_time
async def test_what_a_lost_connection_had_is_for_others_at_once() -> None:
    async with a_group() as scene:
        await scene.append(2)
        one, two = await scene.member("1"), await scene.member("2")
        assert await one.take() == [(0, 1, 1)]
        one.client.writer.close()
        assert await two.take(max_wait_ms=500) == [(0, 1, 2)]


@in_virtual_time
async def test_no_more_sessions_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_group() as scene:
        sessions = scene.served.listener._handlers.share_fetch.sessions
        monkeypatch.setattr(sessions, "_max", 1)
        monkeypatch.setattr("antiphon.kafka.share_sessions.EVICT_S", 0.5)
        one, two = await scene.member("1"), await scene.member("2")
        assert (await one.fetch()).error_code == code.NONE
        assert (await two.fetch()).error_code == code.SHARE_SESSION_LIMIT_REACHED
        await asyncio.sleep(0.6)
        assert (await two.fetch()).error_code == code.NONE
        assert (await one.fetch()).error_code == code.SHARE_SESSION_NOT_FOUND


@in_virtual_time
async def test_the_next_leader_knows_what_was_acknowledged() -> None:
    async with a_group(3) as scene:
        await scene.append(6)
        one = await scene.member("1")
        assert await one.take() == [(0, 5, 1)]
        assert await one.accept(0, 1) == code.NONE
        assert await one.accept(3, 3) == code.NONE
        assert await one.accept(4, 4, RELEASE) == code.NONE
        await scene.served.lead("t", 1)
        answer = await one.fetch()
        (told,) = answer.responses[0].partitions
        assert told.error_code == code.NOT_LEADER_OR_FOLLOWER
        assert told.current_leader.leader_id == 1
        assert [node.node_id for node in answer.node_endpoints] == [1]
        moved = Member(await scene.connect(1), scene.topic_id)
        assert await moved.take() == [(2, 2, 1), (4, 5, 2)] or await moved.take() == []


@in_virtual_time
async def test_a_former_leader_stores_nothing_and_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not hear that another one leads: what is stored tells it so."""
    async with a_group(3) as scene:
        await scene.append(6)
        one = await scene.member("1")
        assert await one.take(max_records=3, share_acquire_mode=1) == [(0, 2, 1)]
        first = scene.served.nodes.nodes[0].gateway
        shard_id = first.topic("t").shards[0].shard_id
        term = first.term_led(shard_id)
        fetched = [await first.fetch(shard_id, 0, 1 << 20, "read_uncommitted")]
        await scene.served.lead("t", 1)
        led = first.term_led
        monkeypatch.setattr(first, "term_led", lambda shard: term if shard == shard_id else led(shard))

        async def fetch(*_: Any, **__: Any) -> Any:
            return fetched[0]

        monkeypatch.setattr(first, "fetch", fetch)
        other = Member(await scene.connect(1), scene.topic_id, "2")
        assert await other.take() == [(0, 5, 1)], "locks end with their leader"
        assert await other.accept(0, 5) == code.NONE
        stale = await one.fetch()
        assert [p.error_code for topic in stale.responses for p in topic.partitions] == [
            code.NOT_LEADER_OR_FOLLOWER
        ]
        assert await one.accept(0, 2) == code.NOT_LEADER_OR_FOLLOWER


@in_virtual_time
async def test_an_acknowledgement_is_answered_when_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_group() as scene:
        await scene.append(2)
        one = await scene.member()
        assert await one.take() == [(0, 1, 1)]
        gate = asyncio.Event()
        store = SharePartitions._store_some

        async def slow(self: SharePartitions, group: str, shares: Any) -> None:
            await gate.wait()
            await store(self, group, shares)

        monkeypatch.setattr(SharePartitions, "_store_some", slow)
        told = asyncio.create_task(one.accept(0, 1))
        await asyncio.sleep(0.5)
        assert not told.done()
        gate.set()
        assert await told == code.NONE


@in_virtual_time
async def test_groups_begin_where_their_settings_say() -> None:
    async with a_group() as scene:
        await scene.append(3)
        client = await scene.connect()
        latest = await scene.member("1", group="latest")
        assert await latest.take() == []
        await scene.append(1)
        assert await latest.take() == [(3, 3, 1)]
        assert await configure(client, "ago", auto_offset_reset="by_duration:PT1H") == code.NONE
        ago = await scene.member("1", group="ago")
        assert await ago.take() == [], "the records are of 1970"
        for value in ("none", "by_duration:", "by_duration:P", "by_duration:PTxS", ""):
            assert await configure(client, "ago", auto_offset_reset=value) == code.INVALID_CONFIG, value
        assert await configure(client, "ago", record_lock_duration_ms="1") == code.INVALID_CONFIG
        assert await configure(client, "ago", nothing="1") == code.INVALID_CONFIG
        resource = admin.DescribeConfigsResource(
            resource_type=32, resource_name="ago", configuration_keys=["share.auto.offset.reset"]
        )
        request = admin.DescribeConfigsRequest(resources=[resource])
        (setting,) = (await ask(client, request)).results[0].configs
        assert (setting.value, setting.config_source) == ("by_duration:PT1H", 8)
        assert await configure(client, "ago", auto_offset_reset=None) == code.NONE
        (setting,) = (await ask(client, request)).results[0].configs
        assert (setting.value, setting.config_source) == ("latest", 5)


@in_virtual_time
async def test_records_are_deleted_under_a_group() -> None:
    async with a_group() as scene:
        await scene.append(2, batches=5)
        one = await scene.member()
        assert await one.take(max_records=4) == [(0, 3, 1)]
        partition = admin.DeleteRecordsPartition(partition_index=0, offset=6)
        await ask(
            one.client,
            admin.DeleteRecordsRequest(
                timeout_ms=1_000, topics=[admin.DeleteRecordsTopic(name="t", partitions=[partition])]
            ),
        )
        assert await one.take() == [(6, 9, 1)]
        assert await one.accept(0, 3) == code.NONE, "they are before the start offset"


@in_virtual_time
async def test_heartbeats_that_make_no_sense_and_silent_members() -> None:
    async with a_group() as scene:
        one = await scene.member()
        for changed in (
            {"group_id": ""},
            {"member_id": ""},
            {"rack_id": ""},
            {"member_epoch": -2},
            {"member_epoch": 0, "subscribed_topic_names": None},
        ):
            assert (await one.heartbeat(**changed)).error_code == code.INVALID_REQUEST, changed
        assert (await one.heartbeat(member_epoch=9)).error_code == code.FENCED_MEMBER_EPOCH
        assert (await one.heartbeat(member_id="x", member_epoch=3)).error_code == code.UNKNOWN_MEMBER_ID
        await scene.member("2")
        await scene.member("3")
        full = Member(one.client, scene.topic_id, "4")
        assert (await full.heartbeat()).error_code == code.GROUP_MAX_SIZE_REACHED
        await asyncio.sleep(3.5)
        assert (await one.heartbeat()).error_code == code.UNKNOWN_MEMBER_ID
        assert (await full.heartbeat()).error_code == code.NONE


@in_virtual_time
async def test_fetches_that_make_no_sense() -> None:
    async with a_group() as scene:
        one = await scene.member()
        for changed in ({"group_id": None}, {"member_id": None}, {"member_id": "x" * 1025}):
            assert (await one.fetch(**changed)).error_code == code.INVALID_REQUEST, changed
        nobody = Member(one.client, scene.topic_id, group="nobody")
        answer = await nobody.fetch()
        (told,) = answer.responses[0].partitions
        assert told.error_code == code.UNKNOWN_TOPIC_OR_PARTITION
        strange = Member(one.client, b"s" * 16)
        assert (await strange.fetch()).responses[0].partitions[0].error_code == code.UNKNOWN_TOPIC_ID
        bad = await one.fetch()
        assert bad.error_code == code.NONE
        assert await one.accept(5, 9) == code.INVALID_RECORD_STATE
        assert await one.accept(5, 4) == code.INVALID_REQUEST


@in_virtual_time
async def test_rows_of_topics_that_are_gone_go_away_with_the_next_new_one() -> None:
    async with a_group() as scene:
        await scene.append(1)
        one = await scene.member()
        assert await one.take() == [(0, 0, 1)]
        await ask(one.client, admin.DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000), 5)
        made = await scene.served.create("t")
        node = scene.served.first
        keeper = scene.served.listener._handlers.share_offsets._keeper
        shard_id, _ = scene.served.listener._coordinator.home("g")
        assert len(await keeper.rows(shard_id, "g")) == 1
        again = Member(one.client, made.topic_id)
        assert (await again.fetch()).error_code == code.NONE
        rows = await keeper.rows(shard_id, "g")
        assert [made.topic_id.hex() in row.key.decode() for row in rows] == [True]
        assert node.node_id == 0
