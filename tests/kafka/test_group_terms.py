"""A group's state belongs to the term in which this node's own replica leads, whatever the metadata here says yet."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from antiphon.errors import NotLeaderError
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.types import GroupConfig, Join, Sync
from antiphon.model.metadata import Kind, ShardMeta, TopicMeta
from antiphon.model.requests import TableGet, TableRows, TableScan
from tests.coroutines import on_a_loop

if TYPE_CHECKING:
    from antiphon.gateway.interface import Gateway

HERE, SHARD, TERM = 1, 7, 5
JOIN = Join("", None, "c", "h", 60_000, 60_000, "consumer", (("range", b""),), "m")


class StaleNode:
    """A node whose metadata says for ever that it leads the shard of all groups in one term; its replica knows better."""

    node_id = HERE
    metadata = SimpleNamespace(version=1, nodes=())

    def __init__(self) -> None:
        self.leads_in: int | None = TERM

    def topic(self, name: str) -> TopicMeta:
        shard = ShardMeta(SHARD, 0, (0, 1, 2), leader=HERE, term=TERM)
        return TopicMeta(name, b"t" * 16, Kind.TABLE, 3, "oxia", (shard,), internal=True)

    async def table_scan(self, _request: TableScan) -> TableRows:
        return TableRows((), False)

    async def table_get(self, _request: TableGet) -> TableRows:
        return TableRows((None,), False)

    def term_led(self, shard_id: int) -> int | None:
        return self.leads_in if shard_id == SHARD else None


async def with_a_member(node: StaleNode) -> tuple[GroupCoordinator, int]:
    groups = GroupCoordinator(
        cast("Gateway", cast("Any", node)), GroupConfig(initial_delay_ms=0), table_shards=1
    )
    joined = await groups.join("g", JOIN)
    assert joined.error_code == code.NONE
    await groups.sync("g", Sync("m", None, joined.generation, "consumer", "range", (("m", b""),)))
    assert groups.check_commit("g", "m", None, joined.generation) == code.NONE
    return groups, joined.generation


@on_a_loop
async def test_a_generation_of_an_earlier_term_commits_nothing_though_the_metadata_still_shows_that_term() -> (
    None
):
    node = StaleNode()
    groups, generation = await with_a_member(node)
    node.leads_in = TERM + 2  # another node led in between, and may have had members of a later generation
    await groups.ready("g")
    assert groups.check_commit("g", "m", None, generation) == code.ILLEGAL_GENERATION
    assert await groups.heartbeat("g", "m", None, generation) == code.UNKNOWN_MEMBER_ID


@on_a_loop
async def test_a_coordinator_whose_replica_was_deposed_answers_for_no_group() -> None:
    node = StaleNode()
    groups, generation = await with_a_member(node)
    node.leads_in = None
    with pytest.raises(NotLeaderError):
        await groups.heartbeat("g", "m", None, generation)
    assert groups.hosted() == []
