"""A node that was just started and has found no coordinator says so, and not that shards or topics do not exist."""

import pytest

from antiphon import aio
from antiphon.errors import NotReadyError, UnreachableError
from tests.node.in_process import cluster_of, in_virtual_time


@in_virtual_time
async def test_a_node_that_was_told_nothing_does_not_say_that_things_do_not_exist() -> None:
    async with cluster_of(3) as nodes:
        for node_id in range(3):
            await nodes.stop(node_id)
        node = await nodes.start(0)
        with pytest.raises(NotReadyError):
            node.replicas.host(1)
        with pytest.raises(UnreachableError, match="just started"):
            await aio.connect(nodes.members[0].native, connect_timeout_s=0.3)
