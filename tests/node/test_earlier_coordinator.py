"""What a coordinator of an earlier version did not record of nodes is told to the next one."""

import asyncio

import msgspec
import pytest

from antiphon.coordination import coordinator, membership
from antiphon.coordination.actions import Action
from antiphon.coordination.cluster_records import FORMAT
from antiphon.coordination.state import ClusterState
from antiphon.errors import InvalidRequestError
from antiphon.model.cluster import Register
from antiphon.model.metadata import NodeMeta
from antiphon.model.node_settings import ALL_NODES, AlterNodeSettings
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
