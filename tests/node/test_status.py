"""What a node says of itself when somebody asks how it is."""

from antiphon import aio
from antiphon.model.events import TOLD_MAX, EventKind
from antiphon.model.requests import GetStatus
from tests.node.in_process import cluster_of, in_virtual_time


@in_virtual_time
async def test_a_status_tells_what_is_asked_for_and_how_new_the_metadata_is() -> None:
    async with cluster_of(3) as nodes, aio.connect(nodes.members[0].native) as db:
        for n in range(3):
            await db.create_topic(f"t{n}", shards=2)
        meta = await db.metadata()
        shard_id = meta.topics[-1].shards[0].shard_id
        plain = await db.node_status(0)
        assert plain.events == ()
        assert len(plain.replicas) > 1
        assert plain.metadata_version >= meta.version
        told = await db.node_status(0, GetStatus((shard_id,), events=2))
        assert [one.shard_id for one in told.replicas] == [shard_id]
        assert [(kind, name) for _, kind, name, _ in told.events] == [
            (EventKind.TOPIC_MADE, "t1"),
            (EventKind.TOPIC_MADE, "t2"),
        ]
        assert (await db.node_status(1, GetStatus((), events=10**9))).events[-1][2] == "t2"


@in_virtual_time
async def test_a_status_tells_of_so_many_events_at_most() -> None:
    async with cluster_of(1) as nodes, aio.connect(nodes.members[0].native) as db:
        for n in range(TOLD_MAX + 5):
            await db.create_topic(f"t{n}")
        told = (await db.node_status(0, GetStatus((), events=10**6))).events
        assert [name for _, _, name, _ in told][:: TOLD_MAX - 1] == ["t5", f"t{TOLD_MAX + 4}"]
