"""Commit rules on real nodes in this process: what waits for whom, what may be lost, and what is said of it."""

import asyncio
from collections.abc import Callable

import pytest

from antiphon.errors import AntiphonError, OffsetOutOfRangeError, TimedOutError
from antiphon.log.hard_state import HardState
from antiphon.log.operations import OpQueue
from antiphon.model.metadata import ABSENT_NODE, Kind, ShardMeta, ShardStatus
from antiphon.model.requests import AlterTopic, CreateTopic, Put, TableWrite
from antiphon.node.node import Node
from antiphon.partition.partition import Partition
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.records.batch import iter_batches
from antiphon.records.builder import build_batch, committed_of
from antiphon.records.decode import decode_records
from antiphon.replication.actions import Send
from tests.log.helpers import Runner
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time


async def new_shard(
    nodes: Nodes, profile: str = "oxia", config: dict[str, str] | None = None, kind: Kind = Kind.TOPIC
) -> int:
    return await nodes.new_shard(kind=kind, profile=profile, config=config or {})


def batch(value: bytes) -> bytes:
    return bytes(build_batch([(None, value, [], 1)]))


def meta(node: Node, shard_id: int) -> ShardMeta:
    return node.gateway.shard(shard_id)[1]


def deafen(host: Partition) -> None:
    """The replica hears nothing any more; its node goes on."""
    host.receive = lambda *_: None  # type: ignore[method-assign]


def listen(host: Partition) -> None:
    """And hears again."""
    del host.receive


def node_of(nodes: Nodes, host: Partition) -> Node:
    return nodes.nodes[host.services.node_id]


def followers(nodes: Nodes, host: Partition) -> list[Partition]:
    own = host.services.node_id
    found = (node.hosts.get(host.shard_id) for node in nodes.nodes.values() if node.node_id != own)
    return [one for one in found if one is not None]


async def read_all(node: Node, shard_id: int, isolation: str = "committed") -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    while True:
        got = await node.gateway.fetch(shard_id, at, 1 << 20, isolation)
        if not got.batches:
            return found
        for chunk in got.batches:
            records = decode_records(chunk)
            found += [record.value for record in records]
            at = records[-1].offset + 1 if records else at + 1


# -- the live rule ------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_s3_28_s3_29_the_watermark_waits_for_the_recorded_shrink_and_who_catches_up_is_live_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "fluvio", {"live.lag.ms": "200"})
        host = await nodes.leader(shard_id)
        node = node_of(nodes, host)
        await nodes.append(shard_id, b"all three have it")
        silent = followers(nodes, host)[0]
        deafen(silent)
        told = node.agent._live_changes
        monkeypatch.setattr(node.agent, "_live_changes", lambda: ())  # the coordinator hears of nothing
        waiting = asyncio.ensure_future(node.gateway.append(shard_id, batch(b"two have it")))
        assert isinstance(host, SingleWriterPartition)
        await eventually(lambda: host.reports.proposed is not None)
        await asyncio.sleep(0.2)
        assert not waiting.done(), "removed in the leader's eyes only: an election could still choose it"
        assert host.state.high_watermark == 1
        monkeypatch.setattr(node.agent, "_live_changes", told)
        assert (await waiting).next_offset == 2
        left = meta(node, shard_id).live
        assert silent.services.node_id not in left
        assert len(left) == 2, "S3.6: the metadata shows the live replica set"
        assert silent.log.log_end == 1
        listen(silent)
        await eventually(lambda: len(meta(node, shard_id).live) == 3)
        await eventually(lambda: silent.state.high_watermark == 2)


@in_virtual_time
async def test_min_live_blocks_writes_until_enough_are_live() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "fluvio", {"live.lag.ms": "100", "min.live": "3"})
        host = await nodes.leader(shard_id)
        node = node_of(nodes, host)
        await nodes.append(shard_id, b"with all of them")
        away = followers(nodes, host)[0].services.node_id
        await nodes.stop(away)
        with pytest.raises(TimedOutError, match="are enough replicas live"):
            await node.gateway.append(shard_id, batch(b"with two"), timeout_s=0.5)
        assert host.state.high_watermark == 1
        assert host.log.log_end == 2, "it is in the log and not acknowledged"
        await nodes.start(away)
        await eventually(lambda: host.state.high_watermark == 2)


@pytest.mark.parametrize("unclean", [False, True])
@in_virtual_time
async def test_s3_11_s3_18_without_a_live_member_only_an_unclean_election_goes_on(*, unclean: bool) -> None:
    async with cluster_of(4) as nodes:
        config = {"live.lag.ms": "100", "unclean.leader.election.enable": str(unclean).lower()}
        shard_id = await _shard_led_elsewhere(nodes, config)
        host = await nodes.leader(shard_id)
        leader = host.services.node_id
        for follower in followers(nodes, host):
            deafen(follower)
        end = await nodes.append(shard_id, b"the leader alone has it")
        assert meta(nodes.nodes[leader], shard_id).live == (leader,)
        deafen(host)  # its last words must not bring the others back into the live set
        await nodes.stop(leader)
        asked = nodes.nodes[0]
        for node in nodes.nodes.values():
            if shard_id in node.hosts:
                listen(node.hosts[shard_id])
        if not unclean:
            await eventually(lambda: meta(asked, shard_id).status is ShardStatus.OFFLINE)
            await nodes.start(leader)
            assert (await nodes.leader(shard_id)).services.node_id == leader
            assert await nodes.append(shard_id, b"nothing is lost") > end
            values = await read_all(nodes.nodes[leader], shard_id)
            assert values == [b"the leader alone has it", b"nothing is lost"]
            assert sum(node.metrics.unclean_elections for node in nodes.nodes.values()) == 0
            return
        await eventually(lambda: meta(asked, shard_id).leader not in {ABSENT_NODE, leader})
        await nodes.append(shard_id, b"goes on without it")
        elected = await nodes.leader(shard_id)
        assert await read_all(node_of(nodes, elected), shard_id) == [b"goes on without it"]
        assert sum(node.metrics.unclean_elections for node in nodes.nodes.values()) == 1, "C10: counted"
        back = await nodes.start(leader)
        await eventually(lambda: shard_id in back.hosts)
        await eventually(lambda: back.hosts[shard_id].log.terms.end == elected.log.terms.end)
        assert back.hosts[shard_id].state.failed is None
        assert back.metrics.lost_tail_records == 1, "what nobody else had"
        await eventually(lambda: leader in meta(asked, shard_id).live)


async def _shard_led_elsewhere(nodes: Nodes, config: dict[str, str], kind: Kind = Kind.TOPIC) -> int:
    """A shard whose leader does not vote in `__cluster`, so that stopping it leaves the coordinator alone."""
    for number in range(20):
        request = CreateTopic(f"t{number}", kind=kind, profile="fluvio", config=config)
        made = await nodes.nodes[0].gateway.create_topic(request)
        if (await nodes.leader(made.shards[0].shard_id)).services.node_id == 3:
            return made.shards[0].shard_id
    raise AssertionError("node 3 leads nothing")


# -- local and at_least -------------------------------------------------------------------------------------------


def cut_off(host: Partition) -> Callable[[], None]:
    """Nothing about the shard leaves its leader any more, and nothing reaches it; until the function is called."""
    deafen(host)
    send = host.driver.carry_out[Send]
    host.driver.carry_out[Send] = lambda _: None

    def join() -> None:
        listen(host)
        host.driver.carry_out[Send] = send

    return join


@pytest.mark.parametrize("rule", ["local", "at_least(1)"])
@in_virtual_time
async def test_s4_18_s4_28_what_the_leader_alone_had_is_lost_counted_and_refused_to_readers(
    rule: str,
) -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, config={"commit": rule, "accept.split.brain": "true"})
        host = await nodes.leader(shard_id)
        node = node_of(nodes, host)
        for number in range(5):
            await nodes.append(shard_id, b"everybody has %d" % number)
        await eventually(lambda: host.mode.settled == 5)
        join = cut_off(host)
        for number in range(3):  # S4.18: the leader's own disk is enough
            await node.gateway.append(shard_id, batch(b"only here %d" % number), timeout_s=2)
        assert (host.state.high_watermark, host.mode.settled) == (8, 5)
        assert len(await read_all(node, shard_id)) == 8
        await nodes.nodes[0].gateway.elect_leader(shard_id, followers(nodes, host)[0].services.node_id)
        elected = next(one for one in followers(nodes, host) if one.state.is_serving)
        with pytest.raises(OffsetOutOfRangeError) as caught:
            elected.reads.fetch(8, 1000, "", at_least_one=True)
        assert caught.value.details["asked"] == 8, (
            "who had read on is told, not given other records in their place"
        )
        join()
        await eventually(lambda: not host.state.is_leader and host.log.log_end == elected.log.log_end)
        assert node.metrics.lost_tail_records == 3, "S4.28: the loss is measured"
        assert host.state.high_watermark <= elected.state.high_watermark
        values = await read_all(node_of(nodes, elected), shard_id)
        assert values == [b"everybody has %d" % number for number in range(5)]


async def acknowledged_alone(nodes: Nodes) -> tuple[int, Partition]:
    """A shard, and its leader, which is cut off and has acknowledged what nobody else has."""
    shard_id = await new_shard(nodes, config={"commit": "local"})
    host = await nodes.leader(shard_id)
    await nodes.append(shard_id, b"everybody has it")
    await eventually(lambda: host.mode.settled == 1)
    cut_off(host)
    await nodes.nodes[host.services.node_id].gateway.append(shard_id, batch(b"only here"), timeout_s=2)
    return shard_id, host


@in_virtual_time
async def test_s4_28_the_loss_is_counted_also_when_the_process_ended_in_between() -> None:
    async with cluster_of(3) as nodes:
        shard_id, host = await acknowledged_alone(nodes)
        leader = host.services.node_id
        await nodes.stop(leader)
        assert await nodes.append(shard_id, b"another leader's") >= 2
        back = await nodes.start(leader)
        await eventually(lambda: back.metrics.lost_tail_records == 1)


@pytest.mark.parametrize("elected_again", [False, True])
@in_virtual_time
async def test_s4_28_the_loss_is_counted_also_when_the_power_failed_in_between(
    *, elected_again: bool
) -> None:
    async with cluster_of(3) as nodes:
        shard_id, host = await acknowledged_alone(nodes)
        leader = host.services.node_id
        nodes.kill(leader)
        nodes.disks[leader] = nodes.disks[leader].crash()
        if elected_again:  # and the power failed again before it had written anything in that term
            disk, path = nodes.shard_path(leader, shard_id)
            state = HardState.load(disk, path, OpQueue(path))
            Runner(disk).run(state.stage_led_term(host.state.term + 1))
        assert await nodes.append(shard_id, b"another leader's") >= 2
        back = await nodes.start(leader)
        await eventually(lambda: back.metrics.lost_tail_records == 1)


@in_virtual_time
async def test_a_leader_that_comes_to_acknowledge_early_notes_its_term() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes)
        host = await nodes.leader(shard_id)
        assert host.log.hard_state.led_term == 0
        await nodes.nodes[0].gateway.alter_topic(AlterTopic("t", config={"commit": "local"}))
        await eventually(lambda: host.log.hard_state.led_term == host.state.term)


@in_virtual_time
async def test_s4_29_at_least_k_waits_for_k_replicas() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, config={"commit": "at_least(3)"})
        host = await nodes.leader(shard_id)
        node = node_of(nodes, host)
        await nodes.append(shard_id, b"three have it")
        deafen(followers(nodes, host)[0])
        with pytest.raises(TimedOutError):
            await node.gateway.append(shard_id, batch(b"two have it"), timeout_s=0.4)
        assert host.state.high_watermark == 1
        await node.gateway.alter_topic(AlterTopic("t", {"commit": "at_least(2)"}))
        await eventually(lambda: host.state.high_watermark == 2)  # the new rule counts for what waits, too
        await nodes.append(shard_id, b"two have it")


# -- a living topic changes its rule ------------------------------------------------------------------------------


@in_virtual_time
async def test_c1_a_living_topic_changes_its_commit_rule_under_load() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes)
        acknowledged: dict[int, bytes] = {}
        stop = False

        async def write(writer: int) -> None:
            number = 0
            while not stop:
                value = b"%d/%d" % (writer, number)
                end = await nodes.append(shard_id, value)
                acknowledged[end - 1] = value
                number += 1
                await asyncio.sleep(0.001)

        writers = [asyncio.ensure_future(write(number)) for number in range(3)]
        for rule in ("live", "at_least(3)", "local", "quorum", "live", "quorum"):
            before = len(acknowledged)
            await nodes.nodes[1].gateway.alter_topic(AlterTopic("t", {"commit": rule}))
            fence = "live" if rule == "live" else "majority"
            await eventually(lambda: meta(nodes.nodes[0], shard_id).fence == fence)  # noqa: B023 - awaited here
            await eventually(lambda: len(acknowledged) > before + 20)  # noqa: B023 - awaited here
        stop = True
        await asyncio.gather(*writers)
        host = await nodes.leader(shard_id)
        found: dict[int, bytes | None] = {}
        at = 0
        while at < host.state.high_watermark:
            for chunk in host.reads.read(at, 1 << 20, host.state.high_watermark):
                for record in decode_records(chunk):
                    found[record.offset] = record.value
                at = host.log.log_end if not chunk else max(at, max(found, default=-1) + 1)
            if at not in found and at < host.state.high_watermark:
                at += 1  # a record of the term's beginning
        lost = {offset for offset, value in acknowledged.items() if found.get(offset) != value}
        assert not lost
        ends = [one.log.log_end for one in (host, *followers(nodes, host))]
        await eventually(lambda: len({one.log.log_end for one in (host, *followers(nodes, host))}) == 1)
        assert max(ends) >= len(acknowledged)


@in_virtual_time
async def test_c6_s4_07_a_commit_is_written_into_the_log_and_readers_skip_it() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "tarantool")
        host = await nodes.leader(shard_id)
        for number in range(10):
            await nodes.append(shard_id, b"%d" % number)
        await eventually(lambda: host.state.high_watermark == host.log.log_end)
        told = [
            (header.base_offset, high_watermark)
            for chunk in host.reads.read(0, 1 << 20, host.state.high_watermark)
            for header, data in iter_batches(chunk)
            if (high_watermark := committed_of(data)) is not None
        ]
        assert told, "S4.7: a further record of the log marks the commit"
        assert all(high_watermark <= at for at, high_watermark in told)
        node = node_of(nodes, host)
        assert node.metrics.commit_markers >= len(told)
        assert await read_all(node, shard_id) == [b"%d" % number for number in range(10)]
        before = node.metrics.commit_markers
        await node.gateway.alter_topic(AlterTopic("t", {"commit.marker": "piggyback"}))
        await nodes.append(shard_id, b"without")
        assert node.metrics.commit_markers <= before + 1, "a setting of a living shard"


@in_virtual_time
async def test_min_live_and_the_patience_with_laggards_change_on_a_living_shard() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "fluvio", {"live.lag.ms": "60000"})
        host = await nodes.leader(shard_id)
        node = node_of(nodes, host)
        await nodes.append(shard_id, b"with three")
        deafen(followers(nodes, host)[0])
        waiting = asyncio.ensure_future(node.gateway.append(shard_id, batch(b"waits a minute for it")))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await node.gateway.alter_topic(AlterTopic("t", {"live.lag.ms": "100"}))
        assert (await waiting).next_offset == 2
        await node.gateway.alter_topic(AlterTopic("t", {"min.live": "3"}))
        with pytest.raises(TimedOutError):
            await node.gateway.append(shard_id, batch(b"with two"), timeout_s=0.3)
        await node.gateway.alter_topic(AlterTopic("t", {"min.live": "2"}))
        await eventually(lambda: host.state.high_watermark == 3)


@in_virtual_time
async def test_s3_18_a_store_that_held_what_an_unclean_election_lost_is_told_anew() -> None:
    async with cluster_of(4) as nodes:
        config = {"live.lag.ms": "100", "unclean.leader.election.enable": "true"}
        shard_id = await _shard_led_elsewhere(nodes, config, Kind.TABLE)
        host = await nodes.leader(shard_id)
        leader = host.services.node_id

        async def put(key: bytes, value: bytes) -> None:
            node = node_of(nodes, await nodes.leader(shard_id))
            await node.gateway.table_write(TableWrite(shard_id, (Put(key, value),)))

        await put(b"a", b"everybody has it")
        others = followers(nodes, host)
        await eventually(lambda: all(one.state.high_watermark == host.state.high_watermark for one in others))
        for follower in others:
            deafen(follower)
        await put(b"a", b"the leader alone has it")
        deafen(host)
        await nodes.stop(leader)
        for follower in others:
            listen(follower)
        await eventually(lambda: any(one.state.is_serving for one in others))
        await put(b"b", b"new")
        elected = await nodes.leader(shard_id)
        back = await nodes.start(leader)
        await eventually(lambda: shard_id in back.hosts)
        returned = back.hosts[shard_id]
        await eventually(lambda: returned.log.terms.end == elected.log.terms.end)
        await eventually(lambda: returned.state.high_watermark == elected.state.high_watermark)
        assert returned.state.failed is None
        assert returned.table is not None
        rows = returned.table.state.get_many((b"a", b"b"), include_value=True)
        assert [row.value for row in rows if row is not None] == [b"everybody has it", b"new"]


@in_virtual_time
async def test_a_topic_that_names_no_profile_gets_the_nodes_default() -> None:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        assert (await node.gateway.create_topic(CreateTopic("plain", profile=""))).profile == "oxia"
        node.config.profile = "raft"
        assert (await node.gateway.create_topic(CreateTopic("votes", profile=""))).profile == "raft"


@in_virtual_time
async def test_settings_that_mean_nothing_are_refused_when_a_living_topic_is_altered() -> None:
    async with cluster_of(3) as nodes:
        await new_shard(nodes)
        for config in ({"commit": "most"}, {"commit": "at_least(1)"}, {"election": "raft"}):
            with pytest.raises(AntiphonError):
                await nodes.nodes[0].gateway.alter_topic(AlterTopic("t", dict(config)))
