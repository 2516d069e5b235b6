"""S3 on running nodes: the live replica set, fail-over, return and the two ways to read, over sockets and disks.

Who dials, and how many connections there are (S3.4, S3.20, S3.21), is shown in `tests/node/test_dial.py`.
"""

import asyncio
from pathlib import Path

import pytest

from antiphon.errors import TimedOutError
from antiphon.node.shard_host import ShardHost
from antiphon.records.builder import build_batch
from antiphon.records.decode import Record, decode_records
from antiphon.wire.metadata import ShardMeta, ShardStatus
from antiphon.wire.requests import AlterTopic, CreateTopic
from tests.node.in_process import Nodes, cluster_of, eventually, run

FAST = {"live.lag.max": "0", "live.lag.ms": "200"}


def meta_of(nodes: Nodes, shard_id: int) -> ShardMeta:
    """As the node with the newest metadata sees it."""
    newest = max(nodes.nodes.values(), key=lambda node: node.view.version)
    found = newest.view.shard(shard_id)
    assert found is not None
    return found[1]


def is_online(nodes: Nodes, shard_id: int, live: int) -> bool:
    meta = meta_of(nodes, shard_id)
    return meta.status is ShardStatus.ONLINE and len(meta.live) == live and meta.leader in nodes.nodes


async def topic_of(nodes: Nodes, config: dict[str, str] | None = None) -> int:
    request = CreateTopic("t", replicas=3, profile="fluvio", config={**FAST, **(config or {})})
    node = next(iter(nodes.nodes.values()))
    shard_id = (await node.create_topic(request)).shards[0].shard_id
    await eventually(lambda: is_online(nodes, shard_id, 3))
    return shard_id


async def texts(nodes: Nodes, shard_id: int, isolation: str = "committed") -> list[bytes]:
    leader = nodes.nodes[(await nodes.leader(shard_id)).services.node_id]
    records: list[Record] = []
    while True:
        at = records[-1].offset + 1 if records else 0
        found = await leader.fetch(shard_id, at, 1 << 20, isolation)
        if not found.size_bytes:
            return [record.value or b"" for record in records]
        records += [record for batch in found.batches for record in decode_records(batch)]


def followers(nodes: Nodes, shard_id: int) -> list[int]:
    meta = meta_of(nodes, shard_id)
    return [node for node in meta.ensemble if node != meta.leader and node in nodes.nodes]


def test_s3_06_s3_24_live_replicas_are_in_the_metadata_and_commits_go_by_all_of_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, 3) as nodes:
            shard_id = await topic_of(nodes)
            meta = meta_of(nodes, shard_id)
            assert (sorted(meta.live), meta.fence) == ([0, 1, 2], "live")
            end = await nodes.append(shard_id, b"x")
            assert all(node.hosts[shard_id].log.log_end == end for node in nodes.nodes.values())

    run(test())


def test_s3_17_s3_29_who_is_away_is_not_live_and_is_again_when_it_has_caught_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, 3) as nodes:
            shard_id = await topic_of(nodes)
            away = followers(nodes, shard_id)[0]
            await nodes.stop(away)
            await nodes.append(shard_id, b"while away")
            assert away not in meta_of(nodes, shard_id).live, "that came first"
            await nodes.start(away)
            await eventually(lambda: is_online(nodes, shard_id, 3))
            await nodes.append(shard_id, b"after")
            host = nodes.nodes[away].hosts[shard_id]
            await eventually(lambda: host.high_watermark == 2)

    run(test())


def test_s3_30_s3_31_a_follower_takes_over_and_the_old_leader_follows_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, 3) as nodes:
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
            assert not nodes.nodes[old.leader].hosts[shard_id].is_leader

    run(test())


def test_s3_32_readers_choose_committed_or_uncommitted_and_the_default_is_uncommitted(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, 3) as nodes:
            shard_id = await topic_of(nodes, {"min.live": "3"})
            await nodes.append(shard_id, b"sure")
            await nodes.stop(followers(nodes, shard_id)[0])
            await eventually(lambda: len(meta_of(nodes, shard_id).live) == 2)
            leader = nodes.nodes[meta_of(nodes, shard_id).leader]
            waiting = asyncio.ensure_future(
                leader.append(shard_id, build_batch([(None, b"not yet", [], 1)]), timeout_s=2)
            )
            await eventually(lambda: leader.hosts[shard_id].log.log_end == 2)
            assert await texts(nodes, shard_id, "committed") == [b"sure"]
            assert await texts(nodes, shard_id, "uncommitted") == [b"sure", b"not yet"]
            assert await texts(nodes, shard_id, "") == [b"sure", b"not yet"], "the profile's default"
            with pytest.raises(TimedOutError):
                await waiting

    run(test())


def log_of(host: ShardHost) -> list[Record]:
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


def test_s3_18_an_unclean_election_takes_the_smallest_lag_where_that_is_allowed_and_who_had_more_follows(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, 5) as nodes:
            shard_id = await topic_of(nodes)
            await nodes.append(shard_id, b"all have this")
            away = followers(nodes, shard_id)
            last = await lose_all_live(nodes, shard_id, away)
            await asyncio.sleep(0.5)
            assert meta_of(nodes, shard_id).status is ShardStatus.OFFLINE, "never by itself (C10)"
            assert meta_of(nodes, shard_id).live == (last,)
            unclean = {"unclean.leader.election.enable": "true"}
            await nodes.nodes[away[0]].alter_topic(AlterTopic("t", config=dict(unclean)))
            await eventually(lambda: is_online(nodes, shard_id, 2))
            assert meta_of(nodes, shard_id).leader == away[1]
            await nodes.append(shard_id, b"after")
            expected = [b"all have this", b"without %d" % away[0], b"after"]
            assert await texts(nodes, shard_id) == expected
            await nodes.start(last)
            await eventually(lambda: is_online(nodes, shard_id, 3), 30)
            leads = nodes.nodes[away[1]].hosts[shard_id]
            assert leads.is_leader
            await eventually(lambda: nodes.nodes[last].hosts[shard_id].high_watermark == leads.high_watermark)
            assert log_of(nodes.nodes[last].hosts[shard_id]) == log_of(leads), "what only it had is cut"

    run(test())
