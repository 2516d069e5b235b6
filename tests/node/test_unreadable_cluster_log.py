"""A voter that cannot read its replica of `__cluster` serves all the rest, and says what is wrong."""

import errno
import re

import pytest

from antiphon.errors import NewerFormatError
from antiphon.log.disk import replace_file
from antiphon.log.simulated_faults import Fault
from antiphon.log.snapshot import SNAPSHOT_MAGIC, SNAPSHOT_VERSION, seal
from antiphon.model.findings import UNHEALTHY
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.model.requests import CreateTopic
from tests.node.in_process import DIRECTORY, cluster_of, eventually, in_virtual_time

OWN_LOG = f"{DIRECTORY}/shards/{CLUSTER_SHARD_ID}"


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("kind", [r"\d+\.log", r"\d+\.index", "hard-state", "high-watermark"])
@in_virtual_time
async def test_it_starts_without_and_tells(kind: str, error: int) -> None:
    async with cluster_of(3) as nodes:
        shards = []
        for name, profile in (("t", "oxia"), ("v", "raft")):
            topic = await nodes.nodes[0].gateway.create_topic(CreateTopic(name, profile=profile, replicas=3))
            shards.append(topic.shards[0].shard_id)
            await nodes.append(shards[-1], b"before")
        await nodes.stop(1)
        disk = nodes.disks[1]
        name = next(name for name in disk.listdir(OWN_LOG) if re.fullmatch(kind, name))
        disk.faults.append(Fault(("open", "read"), error, f"{OWN_LOG}/{name}"))
        node = await nodes.start(1)
        assert await node.joined(20)
        for shard_id in shards:
            end = await nodes.append(shard_id, b"meanwhile")
            await eventually(lambda: node.hosts[shard_id].log.durable_end >= end)  # noqa: B023
        (found,) = node.care.findings.all
        assert (found.kind, found.shard_id, found.level) == ("replica_closed", CLUSTER_SHARD_ID, UNHEALTHY)
        assert name in found.what
        disk.faults.clear()
        await nodes.stop(1)
        node = await nodes.start(1)
        await eventually(lambda: node.hosts[CLUSTER_SHARD_ID].status().state == "ok")
        await eventually(lambda: not node.care.findings.now)


@in_virtual_time
async def test_a_newer_versions_log_is_refused() -> None:
    async with cluster_of(3) as nodes:
        await nodes.stop(1)
        newer = seal(SNAPSHOT_MAGIC, SNAPSHOT_VERSION + 1, b"who knows")
        name = max(name for name in nodes.disks[1].listdir(OWN_LOG) if name.endswith(".snapshot"))
        replace_file(nodes.disks[1], f"{OWN_LOG}/{name}", newer)
        with pytest.raises(NewerFormatError):
            await nodes.start(1)
        nodes.nodes.pop(1), nodes.servers.pop(1)
