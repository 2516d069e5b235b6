"""S2, conditional publish (KIP-27): what a shard's leader does with an expected offset, claim by claim.

The key-value store that the document builds on it (S2.4-S2.8, S2.10, S2.11) is `LogBackedStore`; its claims are shown in
`tests/client/test_log_backed_store.py`, those of Kafka's listener in `tests/kafka/test_produce.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from antiphon.client.aio import connect
from antiphon.client.hashing import shard_of_table_key
from antiphon.errors import NotLeaderError, OffsetMismatchError
from antiphon.model.requests import CreateTopic
from antiphon.model.results import AppendResult
from antiphon.model.topic_keys import shard_of_topic_key
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from antiphon.replication.messages import NewTerm
from tests.coroutines import run_by
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

COORDINATOR = 0


class Shard:
    """One shard of a running cluster; appends go to whoever leads it."""

    def __init__(self, nodes: Nodes, shard_id: int) -> None:
        self.nodes = nodes
        self.shard_id = shard_id

    async def append(
        self, *values: bytes, at: int | None = None, producer: tuple[int, int] = (-1, -1)
    ) -> AppendResult:
        """One batch, one try per leader. `at`: the expected offset; `producer`: id and first sequence."""
        while True:
            leader = (await self.nodes.leader(self.shard_id)).services.node_id
            try:
                return await self.append_on(leader, *values, at=at, producer=producer)
            except NotLeaderError:
                continue

    async def append_on(
        self, node: int, *values: bytes, at: int | None = None, producer: tuple[int, int] = (-1, -1)
    ) -> AppendResult:
        """One try at one node."""
        batch = build_batch(
            [(None, value, [], 1) for value in values],
            producer_id=producer[0],
            producer_epoch=0 if producer[0] >= 0 else -1,
            base_sequence=producer[1],
        )
        return await self.nodes.nodes[node].gateway.append(self.shard_id, batch, expected_offset=at)

    async def refused(self, *values: bytes, at: int, producer: tuple[int, int] = (-1, -1)) -> int:
        """The append is refused; returns the actual end that the refusal names."""
        with pytest.raises(OffsetMismatchError) as caught:
            await self.append(*values, at=at, producer=producer)
        assert caught.value.expected == at
        return caught.value.actual

    async def values(self) -> list[bytes | None]:
        """What is committed, in log order."""
        host = await self.nodes.leader(self.shard_id)
        found: list[bytes | None] = []
        at = host.log.log_start
        while at < host.state.high_watermark:
            fetched = await self.nodes.nodes[host.services.node_id].gateway.fetch(self.shard_id, at, 1 << 20)
            for batch in fetched.batches:
                found += [record.value for record in decode_records(batch)]
                at = read_header(batch).next_offset
        return found


async def shard_of(nodes: Nodes, name: str = "t") -> Shard:
    topic = await nodes.nodes[0].gateway.create_topic(CreateTopic(name))
    shard = Shard(nodes, topic.shards[0].shard_id)
    await nodes.leader(shard.shard_id)
    return shard


async def outcomes(*appends: Awaitable[AppendResult]) -> list[int | str]:
    """Where each landed, or the code of its error."""
    found = await asyncio.gather(*appends, return_exceptions=True)
    return [
        one.base_offset if isinstance(one, AppendResult) else getattr(one, "code", str(one)) for one in found
    ]


@in_virtual_time
async def play(scenario: Any, count: int = 1) -> None:
    """Run a coroutine function against a shard of a fresh cluster."""
    async with cluster_of(count) as nodes:
        await scenario(await shard_of(nodes))


on_a_shard = run_by(play, given=1)
on_three_nodes = run_by(partial(play, count=3), given=1)


@pytest.mark.parametrize("shard_of_key", [shard_of_topic_key, shard_of_table_key], ids=["topics", "tables"])
@pytest.mark.parametrize("shards", [1, 2, 3, 7, 64])
def test_s2_01_the_keyspace_is_split_every_key_belongs_to_exactly_one_shard(
    shard_of_key: Callable[[bytes, int], int], shards: int
) -> None:
    keys = [b"", "schlüssel".encode(), bytes(300), *(b"N%d" % number for number in range(100 * shards))]
    parts: list[set[bytes]] = [set() for _ in range(shards)]
    for _ in range(2):
        for key in keys:
            parts[shard_of_key(key, shards)].add(key)
    assert sum(map(len, parts)) == len(keys), "in one shard, the same one each time"
    assert all(len(part) >= 50 for part in parts), "every shard has its part of the keys"


@in_virtual_time
async def test_s2_01_a_tables_row_is_in_one_shard_and_found_there() -> None:
    async with cluster_of(1) as nodes, connect(nodes.members[0].native) as db:
        table = await db.create_table("k", shards=4)
        keys = [b"key-%d" % number for number in range(40)]
        for key in keys:
            await table.put(key, b"value of " + key)
        node = nodes.nodes[0]
        held: dict[bytes, list[int]] = {key: [] for key in keys}
        for shard in node.gateway.topic("k").shards:
            host = await nodes.leader(shard.shard_id)
            assert host.table is not None
            for key in keys:
                if host.table.state.get(key) is not None:
                    held[key].append(shard.index)
        assert all(len(shards) == 1 for shards in held.values())
        assert len({shards[0] for shards in held.values()}) == 4
        for key in keys:
            assert (await table.get(key)).value == b"value of " + key


@on_a_shard
async def test_s2_09_an_empty_log_expects_0_and_every_record_has_its_place(shard: Shard) -> None:
    """S2.9, S2.12, S2.13: the expectation is the first record's, those after it follow, the whole batch or nothing."""
    assert await shard.refused(b"not yet", at=1) == 0
    assert await shard.append(b"A", b"B", b"C", at=0) == (0, 3, 1, 0, False, -1)
    assert await shard.append(b"D", b"E", b"F", at=3) == (3, 6, 1, 0, False, -1)
    assert await shard.values() == [b"A", b"B", b"C", b"D", b"E", b"F"]


@on_a_shard
async def test_s2_12_s2_15_another_expectation_has_no_effect_at_all(shard: Shard) -> None:
    """Too low (somebody else was first) and too high (stale metadata) are refused and leave nothing."""
    await shard.append(b"A", b"B", b"C")
    host = await shard.nodes.leader(shard.shard_id)
    size = host.log.size_bytes
    for wrong in (0, 1, 2, 4, 5, 1 << 62):
        assert await shard.refused(b"D", at=wrong, producer=(7, 0)) == 3
    assert (host.log.log_end, host.log.size_bytes) == (3, size)
    assert host.log.producers.last_batch(7) is None, "a refused append leaves no sequence behind"
    assert (await shard.append(b"D", at=3, producer=(7, 0))).base_offset == 3


@on_a_shard
async def test_s2_12_the_end_of_the_log_decides_not_what_is_committed(shard: Shard) -> None:
    """Appends that were asked for in one turn are judged one after the other, before any of them is committed."""
    landed = await outcomes(
        shard.append_on(0, b"A", at=0),
        shard.append_on(0, b"B", at=0),
        shard.append_on(0, b"C", at=1),
        shard.append_on(0, b"D"),
        shard.append_on(0, b"E", at=2),
        shard.append_on(0, b"F", at=3),
    )
    assert landed == [0, "offset_mismatch", 1, 2, "offset_mismatch", 3]
    assert await shard.values() == [b"A", b"C", b"D", b"F"]


@on_a_shard
async def test_s2_02_s2_05_of_two_leaders_at_the_same_end_one_wins(shard: Shard) -> None:
    """Correctness does not need that there is one writer; the loser's batch is nowhere, not even in part."""
    end = 0
    winners: list[bytes] = []
    for round_ in range(30):
        batches: list[Sequence[bytes]] = [
            [b"%d-%d-%d" % (round_, who, i) for i in range(3)] for who in range(2)
        ]
        order = (0, 1) if round_ % 3 else (1, 0)
        found = await outcomes(*(shard.append_on(0, *batches[who], at=end) for who in order))
        assert found == [end, "offset_mismatch"]
        winners += batches[order[0]]
        end += 3
    assert await shard.values() == winners


@pytest.mark.parametrize("known", [True, False], ids=["known producer", "new producer"])
@on_a_shard
async def test_s2_13_a_chain_leaves_a_prefix_and_its_retry_is_refused_with_the_actual_end(
    shard: Shard, known: bool
) -> None:
    """[A,B,C], then the chain D, E, F with somebody's X in between: ABCDX or ABCX; E and F never follow silently.

    F even expects what is the end by then: that its producer's batch before it was refused is what stops it.
    """
    first = (7, 0) if known else (-1, -1)
    sequence = 3 if known else 0
    await shard.append(b"A", b"B", b"C", producer=first)
    if known:
        await shard.append(b"D", at=3, producer=(7, sequence))
        sequence += 1
    end = 4 if known else 3
    chain = await outcomes(
        shard.append_on(0, b"X"),
        shard.append_on(0, b"E", at=end, producer=(7, sequence)),
        shard.append_on(0, b"F", at=end + 1, producer=(7, sequence + 1)),
        shard.append_on(0, b"G", producer=(7, sequence + 2)),
    )
    assert chain == [end, "offset_mismatch", "out_of_order_sequence", "out_of_order_sequence"]
    assert await shard.refused(b"E", b"F", at=end) == end + 1
    assert await shard.values() == [b"A", b"B", b"C", *([b"D"] if known else []), b"X"]
    after = await outcomes(
        shard.append_on(0, b"E", at=end + 1, producer=(7, sequence)),
        shard.append_on(0, b"F", at=end + 2, producer=(7, sequence + 1)),
    )
    assert after == [end + 1, end + 2], "the refused batch under a new expectation, and then its successors"


@on_a_shard
async def test_s2_13_batches_without_a_producer_are_judged_each_on_its_own(shard: Shard) -> None:
    """A chain needs either a producer's sequences or, as S2.8 has it, one batch in flight at a time."""
    chain = await outcomes(*(shard.append_on(0, b"%d" % i, at=i) for i in range(5)))
    assert chain == [0, 1, 2, 3, 4]
    broken = await outcomes(
        shard.append_on(0, b"X"), shard.append_on(0, b"E", at=5), shard.append_on(0, b"F", at=6)
    )
    assert broken == [5, "offset_mismatch", 6]


@on_a_shard
async def test_s2_14_a_retry_never_duplicates(shard: Shard) -> None:
    """With a producer it is answered with where it landed, whatever came since; without one it is refused."""
    await shard.append(b"A")
    original = await shard.append(b"B", b"C", at=1, producer=(7, 0))
    assert original == (1, 3, 1, 0, False, -1)
    assert await shard.append(b"B", b"C", at=1, producer=(7, 0)) == original._replace(duplicate=True)
    await shard.append(b"D")
    assert await shard.append(b"B", b"C", at=1, producer=(7, 0)) == original._replace(duplicate=True)
    assert await shard.refused(b"B", b"C", at=1) == 4
    assert await shard.values() == [b"A", b"B", b"C", b"D"]


@on_a_shard
async def test_s2_18_without_an_expectation_nothing_is_judged(shard: Shard) -> None:
    """Unconditional and conditional appends share a log; the former always land at the end (S2.18, the seed's gap)."""
    assert (await shard.append(b"A")).base_offset == 0
    assert await shard.refused(b"B", at=0) == 1
    assert (await shard.append(b"C")).base_offset == 1
    assert (await shard.append(b"D", at=2)).base_offset == 2
    assert (await shard.append(b"E")).base_offset == 3
    assert await shard.values() == [b"A", b"C", b"D", b"E"]


async def without_followers(nodes: Nodes, shard: Shard) -> int:
    """Stop every node but the shard's leader; it goes on leading and can commit nothing. Returns its id."""
    leader = (await nodes.leader(shard.shard_id)).services.node_id
    for node_id in [one for one in nodes.nodes if one != leader]:
        await nodes.stop(node_id)
    return leader


def test_s2_17_nothing_is_answered_before_what_it_rests_on_is_committed() -> None:
    """S2.14, S2.15, S2.17: success, the success of a retry and a refusal alike. Then leadership ends: nobody was told a
    "no" that came of an append which may vanish.
    """

    async def scenario(shard: Shard) -> None:
        nodes, shard_id = shard.nodes, shard.shard_id
        await shard.append(b"A")
        leader = await without_followers(nodes, shard)
        host = nodes.nodes[leader].hosts[shard_id]

        async def ask() -> list[asyncio.Task[AppendResult]]:
            end = host.log.log_end
            asked = [
                asyncio.create_task(shard.append_on(leader, b"B", at=end, producer=(7, end))),
                asyncio.create_task(shard.append_on(leader, b"B", at=end, producer=(7, end))),
                asyncio.create_task(shard.append_on(leader, b"C", at=end)),
            ]
            await eventually(lambda: host.log.durable_end == end + 1)
            assert host.log.log_end == end + 1
            return asked

        asked = await ask()
        assert not any(one.done() for one in asked)
        assert host.state.high_watermark == 1
        await nodes.start((leader + 1) % 3)
        found = await asyncio.gather(*asked, return_exceptions=True)
        if not isinstance(
            found[0], NotLeaderError
        ):  # a heartbeat that came late may have cost the leadership
            first, again, refusal = found
            assert isinstance(first, AppendResult)
            assert isinstance(again, AppendResult)
            assert (first[:2], again[:2], again.duplicate) == ((1, 2), (1, 2), True)
            assert isinstance(refusal, OffsetMismatchError)
            assert refusal.actual == 2
            assert host.state.high_watermark >= 2

    async def deposed(shard: Shard) -> None:
        nodes, shard_id = shard.nodes, shard.shard_id
        await shard.append(b"A")
        leader = await without_followers(nodes, shard)
        host = nodes.nodes[leader].hosts[shard_id]
        asked = [
            asyncio.create_task(shard.append_on(leader, b"B", at=1)),
            asyncio.create_task(shard.append_on(leader, b"C", at=1)),
        ]
        await eventually(lambda: host.log.durable_end == 2)
        host.receive(COORDINATOR, NewTerm(shard_id, host.state.term + 1))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in found] == [NotLeaderError, NotLeaderError]

    play(scenario, 3)
    play(deposed, 3)


@on_three_nodes
async def test_s2_16_a_chain_that_a_fail_over_cut_is_refused_where_it_was_cut(shard: Shard) -> None:
    """[A,B,C] and the chain D, E, F; the leader dies when only D is committed. The retry of D is answered with its place,
    E and F meet a log that went on without them: refused with the actual end, from which to bootstrap (S2.11-S2.16).
    """
    nodes = shard.nodes
    await shard.append(b"A", b"B", b"C")
    original = await shard.append(b"D", at=3, producer=(7, 0))
    followers = [one for one in nodes.nodes if one != (await nodes.leader(shard.shard_id)).services.node_id]
    leader = await without_followers(nodes, shard)
    host = nodes.nodes[leader].hosts[shard.shard_id]
    lost = [
        asyncio.create_task(shard.append_on(leader, b"E", at=4, producer=(7, 1))),
        asyncio.create_task(shard.append_on(leader, b"F", at=5, producer=(7, 2))),
    ]
    await eventually(lambda: host.log.durable_end == 6)
    await nodes.stop(leader)
    assert await outcomes(*lost) == ["not_leader", "not_leader"]
    for node_id in followers:
        await nodes.start(node_id)

    again = await shard.append(b"D", at=3, producer=(7, 0))
    assert (again.base_offset, again.next_offset, again.duplicate) == (3, 4, True)
    assert again.base_offset == original.base_offset
    actual = await shard.refused(b"E", at=4, producer=(7, 1))
    assert actual > 4, "the new leader's term start took an offset"
    assert await outcomes(shard.append(b"F", at=5, producer=(7, 2))) == ["out_of_order_sequence"]
    assert await shard.values() == [b"A", b"B", b"C", b"D"]
    await shard.append(b"E", at=actual, producer=(7, 1))
    await shard.append(b"F", at=actual + 1, producer=(7, 2))

    await nodes.start(leader)
    hosts = nodes.nodes[leader].hosts
    await eventually(
        lambda: shard.shard_id in hosts and hosts[shard.shard_id].state.high_watermark >= actual + 2
    )
    assert hosts[shard.shard_id].log.log_end == actual + 2
    assert await shard.values() == [b"A", b"B", b"C", b"D", b"E", b"F"]


@on_three_nodes
async def test_s2_14_the_place_of_a_conditional_append_outlives_its_leader(shard: Shard) -> None:
    nodes = shard.nodes
    original = await shard.append(b"A", b"B", at=0, producer=(7, 0))
    before = (await nodes.leader(shard.shard_id)).services.node_id
    await nodes.stop(before)
    again = await shard.append(b"A", b"B", at=0, producer=(7, 0))
    assert again.duplicate
    assert again[:2] == original[:2]
    assert again.term > original.term
    assert await shard.values() == [b"A", b"B"]
