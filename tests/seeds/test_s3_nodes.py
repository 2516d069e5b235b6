"""S3 on running nodes: the live replica set, fail-over, return and the two ways to read, over sockets and disks.

Who dials, and how many connections there are (S3.20, S3.21), is shown in `tests/node/test_dial.py`. The statuses of an
election are seen from outside: by clients that wait for every change of the metadata at each node that is left.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from antiphon.coordination import candidacies
from antiphon.errors import AntiphonError, TimedOutError
from antiphon.model.metadata import ShardMeta, ShardStatus
from antiphon.model.requests import AlterTopic, CreateTopic, GetMetadata, MetadataReply
from antiphon.node.node import Node
from antiphon.partition.partition import Partition
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from antiphon.records.decode import Record, decode_records
from antiphon.replication.messages import (
    AnyMessage,
    Append,
    BecomeLeader,
    BecomeLeaderReply,
    NewTermReply,
)
from tests.cli import shell
from tests.node import real_nodes
from tests.node.in_process import Nodes, SomeNodes, cluster_of, connected, eventually, in_virtual_time

FAST = {"live.lag.max": "0", "live.lag.ms": "200"}


def meta_of(nodes: SomeNodes, shard_id: int) -> ShardMeta:
    """As the node with the newest metadata sees it."""
    newest = max(nodes.nodes.values(), key=lambda node: node.view.version)
    found = newest.view.shard(shard_id)
    assert found is not None
    return found[1]


def is_online(nodes: SomeNodes, shard_id: int, live: int) -> bool:
    meta = meta_of(nodes, shard_id)
    return meta.status is ShardStatus.ONLINE and len(meta.live) == live and meta.leader in nodes.nodes


async def topic_of(nodes: SomeNodes, config: dict[str, str] | None = None) -> int:
    request = CreateTopic("t", replicas=3, profile="fluvio", config={**FAST, **(config or {})})
    node = next(iter(nodes.nodes.values()))
    shard_id = (await node.gateway.create_topic(request)).shards[0].shard_id
    await eventually(lambda: is_online(nodes, shard_id, 3))
    return shard_id


async def texts(nodes: Nodes, shard_id: int, isolation: str = "committed") -> list[bytes]:
    leader = nodes.nodes[(await nodes.leader(shard_id)).services.node_id]
    records: list[Record] = []
    at = 0
    while True:
        found = await leader.gateway.fetch(shard_id, at, 1 << 20, isolation)
        if not found.batches:
            return [record.value or b"" for record in records]
        records += [record for batch in found.batches for record in decode_records(batch)]
        at = read_header(found.batches[-1]).next_offset


def followers(nodes: SomeNodes, shard_id: int) -> list[int]:
    meta = meta_of(nodes, shard_id)
    return [node for node in meta.ensemble if node != meta.leader and node in nodes.nodes]


@in_virtual_time
async def test_s3_06_s3_24_live_replicas_are_in_the_metadata_and_commits_go_by_all_of_them() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await topic_of(nodes)
        meta = meta_of(nodes, shard_id)
        assert (sorted(meta.live), meta.fence) == ([0, 1, 2], "live")
        end = await nodes.append(shard_id, b"x")
        assert all(node.hosts[shard_id].log.log_end == end for node in nodes.nodes.values())


async def shown_live(nodes: real_nodes.Nodes) -> list[int]:
    """The live replica set of the topic `t` as `antiphon shard list` prints it."""
    servers = ",".join(nodes.members[node].native for node in nodes.nodes)
    words = ("shard", "list", "--topic", "t", "--servers", servers, "--json")
    done = await asyncio.to_thread(shell.antiphon, *words)
    (row,) = json.loads(done.stdout)
    return sorted(row["live"])


@real_nodes.in_real_time
async def test_s3_06_the_live_replicas_are_shown_on_the_command_line(tmp_path: Path) -> None:
    """On real sockets: the command is a process of its own."""
    async with real_nodes.cluster_of(tmp_path, 3) as nodes:
        shard_id = await topic_of(nodes)
        assert await shown_live(nodes) == [0, 1, 2]
        away = followers(nodes, shard_id)[0]
        await nodes.stop(away)
        await eventually(lambda: away not in meta_of(nodes, shard_id).live)
        assert await shown_live(nodes) == sorted(nodes.nodes)


@in_virtual_time
async def test_s3_17_s3_29_who_is_away_is_not_live_and_is_again_when_it_has_caught_up() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await topic_of(nodes)
        away = followers(nodes, shard_id)[0]
        await nodes.stop(away)
        await nodes.append(shard_id, b"while away")
        assert away not in meta_of(nodes, shard_id).live, "that came first"
        await nodes.start(away)
        await eventually(lambda: is_online(nodes, shard_id, 3))
        await nodes.append(shard_id, b"after")
        host = nodes.nodes[away].hosts[shard_id]
        await eventually(lambda: host.state.high_watermark == 2)


@in_virtual_time
async def test_s3_30_s3_31_a_follower_takes_over_and_the_old_leader_follows_it() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await topic_of(nodes)
        values = [b"%d" % number for number in range(5)]
        for value in values:
            await nodes.append(shard_id, value)
        old = meta_of(nodes, shard_id)
        await nodes.stop(old.leader)
        await eventually(lambda: is_online(nodes, shard_id, 2))
        assert meta_of(nodes, shard_id).leader in old.live
        await nodes.append(shard_id, b"5")
        assert await texts(nodes, shard_id) == [*values, b"5"]
        new = meta_of(nodes, shard_id)
        await nodes.start(old.leader)
        await eventually(lambda: is_online(nodes, shard_id, 3))
        again = meta_of(nodes, shard_id)
        assert (again.leader, again.term) == (new.leader, new.term)
        assert not nodes.nodes[old.leader].hosts[shard_id].state.is_leader


@in_virtual_time
async def test_s3_32_c7_readers_choose_committed_or_uncommitted_and_the_default_is_uncommitted() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await topic_of(nodes, {"min.live": "3"})
        await nodes.append(shard_id, b"sure")
        await nodes.stop(followers(nodes, shard_id)[0])
        await eventually(lambda: len(meta_of(nodes, shard_id).live) == 2)
        leader = nodes.nodes[meta_of(nodes, shard_id).leader]
        waiting = asyncio.ensure_future(
            leader.gateway.append(shard_id, build_batch([(None, b"not yet", [], 1)]), timeout_s=2)
        )
        await eventually(lambda: leader.hosts[shard_id].log.log_end == 2)
        assert await texts(nodes, shard_id, "committed") == [b"sure"]
        assert await texts(nodes, shard_id, "uncommitted") == [b"sure", b"not yet"]
        assert await texts(nodes, shard_id, "") == [b"sure", b"not yet"], "the profile's default"
        with pytest.raises(TimedOutError):
            await waiting


def log_of(host: Partition) -> list[Record]:
    """All records of a replica's log."""
    found: list[Record] = []
    while (at := found[-1].offset + 1 if found else 0) < host.log.log_end:
        chunks = host.log.read(at, 1 << 20, host.log.log_end)
        found += [r for chunk in chunks for r in decode_records(chunk, include_control=True)]
    return found


async def lose_all_live(nodes: Nodes, shard_id: int, away: list[int]) -> int:
    """Leave behind members that lack what the last live one has committed; returns that one, which is stopped too."""
    for node in away:
        await nodes.stop(node)
        await eventually(lambda gone=node: gone not in meta_of(nodes, shard_id).live)  # type: ignore[misc]
        await nodes.append(shard_id, b"without %d" % node)
    last = meta_of(nodes, shard_id).leader
    await nodes.stop(last)
    await eventually(lambda: meta_of(nodes, shard_id).status is ShardStatus.OFFLINE)
    for node in away:
        await nodes.start(node)
    return last


@in_virtual_time
async def test_s3_18_an_unclean_election_takes_the_smallest_lag_where_that_is_allowed_and_who_had_more_follows() -> (
    None
):
    async with cluster_of(5) as nodes:
        shard_id = await topic_of(nodes)
        await nodes.append(shard_id, b"all have this")
        away = followers(nodes, shard_id)
        last = await lose_all_live(nodes, shard_id, away)
        await asyncio.sleep(0.5)
        assert meta_of(nodes, shard_id).status is ShardStatus.OFFLINE, "never by itself (C10)"
        assert meta_of(nodes, shard_id).live == (last,)
        unclean = {"unclean.leader.election.enable": "true"}
        await nodes.nodes[away[0]].gateway.alter_topic(AlterTopic("t", config=dict(unclean)))
        await eventually(lambda: is_online(nodes, shard_id, 2))
        assert meta_of(nodes, shard_id).leader == away[1]
        await nodes.append(shard_id, b"after")
        expected = [b"all have this", b"without %d" % away[0], b"after"]
        assert await texts(nodes, shard_id) == expected
        await nodes.start(last)
        await eventually(lambda: is_online(nodes, shard_id, 3), 30)
        leads = nodes.nodes[away[1]].hosts[shard_id]
        assert leads.state.is_leader
        await eventually(
            lambda: nodes.nodes[last].hosts[shard_id].state.high_watermark == leads.state.high_watermark
        )
        assert log_of(nodes.nodes[last].hosts[shard_id]) == log_of(leads), "what only it had is cut"


# -- the statuses of an election, from outside ------------------------------------------------------------------------


class Seen(NamedTuple):
    """What a client reads of a shard."""

    status: ShardStatus
    leader: int
    term: int
    live: tuple[int, ...]


async def soon(condition: Callable[[], bool]) -> None:
    """As `eventually`, for what takes a second or two."""
    await eventually(condition, 12)


ONLINE, ELECTION, FOUND, OFFLINE = (
    ShardStatus.ONLINE,
    ShardStatus.ELECTION,
    ShardStatus.CANDIDATE_FOUND,
    ShardStatus.OFFLINE,
)
Histories = dict[int, list[Seen]]


async def look(address: str, shard_id: int, seen: list[Seen]) -> None:
    """Wait for each change of a node's metadata through its native listener, and note what it says of the shard."""
    version = -1
    with suppress(AntiphonError):  # the node was stopped
        async with connected(address) as client:
            while True:
                reply, _ = await client.request(GetMetadata(version, 500))
                assert isinstance(reply, MetadataReply)
                version = reply.cluster.version
                metas = [meta for topic in reply.cluster.topics for meta in topic.shards]
                meta = next(one for one in metas if one.shard_id == shard_id)
                now = Seen(meta.status, meta.leader, meta.term, tuple(sorted(meta.live)))
                if not seen or seen[-1] != now:
                    seen.append(now)


@asynccontextmanager
async def watched(nodes: Nodes, shard_id: int, who: list[int]) -> AsyncIterator[Histories]:
    """What clients of each of these nodes see."""
    histories: Histories = {node: [] for node in who}
    tasks = [
        asyncio.create_task(look(nodes.members[node].native, shard_id, seen))
        for node, seen in histories.items()
    ]
    try:
        await soon(lambda: all(histories.values()))
        yield histories
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def hold_answers(nodes: Nodes, shard_id: int, histories: Histories, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicas' answers go out when every client has seen what they answer, so that none can miss a short status."""

    def is_seen(status: ShardStatus, term: int) -> bool:
        return all(any(one[0] is status and one[2] == term for one in seen) for seen in histories.values())

    def holding(node: Node) -> Callable[[int, AnyMessage], None]:
        send = node.send_message

        async def later(to: int, message: NewTermReply | BecomeLeaderReply) -> None:
            status = ELECTION if isinstance(message, NewTermReply) else FOUND
            await soon(lambda: is_seen(status, message.term))
            send(to, message)

        def sending(to: int, message: AnyMessage) -> None:
            if message.shard == shard_id and isinstance(message, NewTermReply | BecomeLeaderReply):
                node.spawn(later(to, message))
            else:
                send(to, message)

        return sending

    for node in nodes.nodes.values():
        monkeypatch.setattr(node, "send_message", holding(node))


def intercept(
    monkeypatch: pytest.MonkeyPatch, shard_id: int, is_lost: Callable[[int, AnyMessage], bool]
) -> list[int]:
    """Messages to replicas of the shard for which `is_lost(node, message)` do not arrive. Returns who is asked to lead."""
    asked: list[int] = []
    receive = SingleWriterPartition.receive

    def receiving(host: SingleWriterPartition, sender: int, message: AnyMessage) -> None:
        if host.shard_id == shard_id:
            if isinstance(message, BecomeLeader):
                asked.append(host.services.node_id)
            if is_lost(host.services.node_id, message):
                return
        receive(host, sender, message)

    monkeypatch.setattr(SingleWriterPartition, "receive", receiving)
    return asked


@in_virtual_time
async def test_s3_08_s3_10_s3_13_s3_14_clients_of_every_node_see_the_statuses_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of(3) as nodes:
        shard_id = await topic_of(nodes)
        old = meta_of(nodes, shard_id)
        left = followers(nodes, shard_id)
        asked = intercept(monkeypatch, shard_id, lambda _node, _message: False)
        async with watched(nodes, shard_id, left) as histories:
            hold_answers(nodes, shard_id, histories, monkeypatch)
            await nodes.stop(old.leader)
            await soon(lambda: is_online(nodes, shard_id, 2))
            await soon(lambda: all(seen[-1].term > old.term for seen in histories.values()))
            await soon(lambda: all(seen[-1].status is ONLINE for seen in histories.values()))
        new = meta_of(nodes, shard_id)
        assert asked == [new.leader], "S3.13: nobody else is told to lead"
        term = old.term + 1
        for seen in histories.values():
            steps = [(one.status, one.leader, one.term) for one in seen]
            assert list(dict.fromkeys(steps)) == [
                (ONLINE, old.leader, old.term),
                (ELECTION, -1, term),  # S3.8
                (FOUND, -1, term),  # S3.10
                (ONLINE, new.leader, term),  # S3.14
            ]
            found = next(one for one in seen if one.status is FOUND)
            assert found.live == seen[-1].live == tuple(sorted(left)), "S3.14: the live set is another one"


@in_virtual_time
async def test_s3_09_on_nodes_the_live_follower_with_the_smallest_lag_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of(3) as nodes:
        shard_id = await topic_of(nodes, {"live.lag.ms": "30000", "live.lag.max": "1000"})
        old = meta_of(nodes, shard_id)
        far, near = followers(nodes, shard_id)
        behind = [True]
        asked = intercept(
            monkeypatch,
            shard_id,
            lambda node, message: node == far and isinstance(message, Append) and behind[0],
        )
        leader = nodes.nodes[old.leader]
        waiting = asyncio.ensure_future(
            leader.gateway.append(shard_id, build_batch([(None, b"not everywhere", [], 1)]))
        )
        await soon(lambda: nodes.nodes[near].hosts[shard_id].log.durable_end == 1)
        assert nodes.nodes[far].hosts[shard_id].log.log_end == 0
        assert sorted(meta_of(nodes, shard_id).live) == [0, 1, 2], "both are live"
        await nodes.stop(old.leader)
        with suppress(AntiphonError):
            await waiting
        await soon(lambda: bool(asked))
        behind[0] = False
        await soon(lambda: is_online(nodes, shard_id, 2))
        assert set(asked) == {near}
        assert await texts(nodes, shard_id) == [b"not everywhere"]


@in_virtual_time
async def test_s3_15_on_nodes_one_candidate_after_the_other_then_offline_and_then_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidacies, "PROMOTE_MS", 300)
    async with cluster_of(3) as nodes:
        shard_id = await topic_of(nodes)
        old = meta_of(nodes, shard_id)
        left = followers(nodes, shard_id)
        silent = [True]
        asked = intercept(
            monkeypatch, shard_id, lambda _node, message: silent[0] and isinstance(message, BecomeLeader)
        )
        async with watched(nodes, shard_id, left) as histories:
            hold_answers(nodes, shard_id, histories, monkeypatch)
            await nodes.stop(old.leader)
            await soon(lambda: all(seen[-1].status is OFFLINE for seen in histories.values()))
            assert sorted(asked) == sorted(left), "each once"
            silent[0] = False
            await soon(lambda: all(seen[-1].status is ONLINE for seen in histories.values()))
        term = old.term
        for seen in histories.values():
            steps = list(dict.fromkeys((one.status, one.term) for one in seen))
            assert steps == [
                (ONLINE, term),
                (ELECTION, term + 1),
                (FOUND, term + 1),
                (ELECTION, term + 2),  # the timer has fired: the next one
                (FOUND, term + 2),
                (ELECTION, term + 3),  # and nobody is left
                (OFFLINE, term + 3),
                (ELECTION, term + 4),
                (FOUND, term + 4),
                (ONLINE, term + 4),
            ]


@in_virtual_time
async def test_s3_04_a_follower_dials_its_leader_notices_a_broken_connection_and_dials_again() -> None:
    """Its check of the leader's health is the connection itself; see docs/divergence.md."""
    async with cluster_of(3, dial="follower") as nodes:
        shard_id = await topic_of(nodes, {"live.lag.ms": "5000"})
        await nodes.append(shard_id, b"a")
        leader = nodes.nodes[meta_of(nodes, shard_id).leader]
        away = nodes.nodes[followers(nodes, shard_id)[0]]
        link = away.link(leader.node_id)
        first = link._connection
        assert first is not None
        first.abort()
        await soon(lambda: link.up and link._connection not in {None, first})
        assert await nodes.append(shard_id, b"b") == 2
        host = away.hosts[shard_id]
        assert host.log.durable_end == 2, "it receives and stores"
        await soon(lambda: host.state.high_watermark == 2)
        assert meta_of(nodes, shard_id).leader == leader.node_id
