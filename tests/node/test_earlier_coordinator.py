"""Nodes of several versions: what a coordinator of an earlier one did not record of nodes is told to the next one, and who
is not let in.
"""

import asyncio

import msgspec
import pytest

from antiphon.coordination import coordinator, membership
from antiphon.coordination.actions import Action
from antiphon.coordination.cluster_records import EXPECTED_FORMAT, FORMAT
from antiphon.coordination.state import ClusterState
from antiphon.errors import InvalidRequestError
from antiphon.model.cluster import Register
from antiphon.model.metadata import NodeMeta
from antiphon.model.node_settings import ALL_NODES, AlterNodeSettings
from antiphon.model.requests import CreateTopic
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time


def arrived_at_an_earlier_version(state: ClusterState, node: NodeMeta) -> NodeMeta:
    """It knows no field for the formats that a node reads: its record has none, which stands for 3."""
    return msgspec.structs.replace(membership.arrived(state, node), reads=3)


def told(nodes: Nodes) -> list[dict[int, int]]:
    """The format that each node is taken to read, by each node."""
    return [{at: one.reads for at, one in node.view.nodes.items()} for node in nodes.nodes.values()]


@in_virtual_time
async def test_nodes_that_registered_in_the_middle_of_an_upgrade_need_no_other_restart() -> None:
    """Formerly they counted as of the earlier version, and what is new was refused, until they were restarted once more."""
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(coordinator, "arrived", arrived_at_an_earlier_version)
        async with cluster_of(3) as nodes:
            await eventually(lambda: told(nodes) == [dict.fromkeys(range(3), 3)] * 3)
            gateway = nodes.nodes[1].gateway
            set_one = AlterNodeSettings(ALL_NODES, {"num_partitions": "2"})
            with pytest.raises(InvalidRequestError, match="nodes 0, 1, 2 are of a version"):
                await gateway.administer(set_one)
            earlier.undo()
            last = nodes.nodes[0].view.controller
            nodes.kill(last)  # the one that was of the earlier version comes back as one of this one
            await nodes.start(last)
            await eventually(lambda: told(nodes) == [dict.fromkeys(range(3), FORMAT)] * 3)
            await nodes.nodes[last].gateway.administer(set_one)


@in_virtual_time
async def test_a_coordinator_of_an_earlier_version_is_told_once() -> None:
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(coordinator, "arrived", arrived_at_an_earlier_version)
        registered: list[int] = []
        register = coordinator.Coordinator.register

        def counted(
            self: coordinator.Coordinator, token: int, request: Register, now_ms: int
        ) -> list[Action]:
            registered.append(request.node.node_id)
            return register(self, token, request, now_ms)

        earlier.setattr(coordinator.Coordinator, "register", counted)
        async with cluster_of(3) as nodes:
            await eventually(lambda: told(nodes) == [dict.fromkeys(range(3), 3)] * 3)
            last = nodes.nodes[0].view.controller
            others = sorted({0, 1, 2} - {last})
            registered.clear()
            nodes.kill(last)
            await eventually(lambda: sorted(registered) == others)
            await nodes.start(last)
            await eventually(lambda: last in registered)
            await asyncio.sleep(5)  # some heartbeats
            assert sorted(registered) == [0, 1, 2]


@in_virtual_time
async def test_a_node_that_does_not_know_a_topics_setting_is_not_let_in() -> None:
    """It holds no replica of `__cluster`, so no record stops it: it would get replicas, and lead them."""
    async with cluster_of(4) as nodes:
        gateway = nodes.nodes[0].gateway
        config = {"expected.offset.header": "true"}
        await gateway.create_topic(CreateTopic("c", shards=4, replicas=3, config=config))
        await nodes.stop(3)
        nodes.told_reads[3] = EXPECTED_FORMAT - 1
        earlier = await nodes.start(3)
        assert not await earlier.joined(5)
        view = nodes.nodes[0].view
        assert not view.nodes[3].alive
        assert view.nodes[3].reads == FORMAT
        await nodes.stop(3)
        nodes.told_reads.clear()
        assert await (await nodes.start(3)).joined(20)
