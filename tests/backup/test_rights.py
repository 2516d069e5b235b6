"""What a user needs for a backup, and what is not enough."""

from pathlib import Path

import pytest

from antiphon.backup.create import create_backup
from antiphon.backup.place import Place
from antiphon.client.aio import AsyncClient
from antiphon.errors import AccessDeniedError
from antiphon.model.access import Operation, Resource
from antiphon.model.requests import AlterAcls
from tests.node.in_process import in_virtual_time
from tests.node.test_access import ADDRESS, EVE, ROOT, eves, give, secured

NEEDED = (
    eves(Resource.CLUSTER, "kafka-cluster", Operation.ALTER),
    eves(Resource.CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION),
    eves(Resource.TOPIC, "*", Operation.READ),
    eves(Resource.TABLE, "*", Operation.READ),
)


@pytest.mark.parametrize("missing", [None, *range(len(NEEDED))])
def test_who_may_make_a_backup(tmp_path: Path, missing: int | None) -> None:
    @in_virtual_time
    async def tried() -> None:
        async with secured() as nodes:
            async with AsyncClient(ADDRESS, account=ROOT) as root:
                await root.create_topic("t")
                await root.topic("t").append(b"1", shard=0)
                await (await root.create_table("k", shards=1)).put("key", b"value")
            place = Place(str(tmp_path / "place"))
            await give(nodes, *NEEDED)
            if missing is not None:
                await nodes.nodes[0].gateway.administer(AlterAcls(remove=(NEEDED[missing],)))
            async with AsyncClient(ADDRESS, account=EVE) as eve:
                if missing is None:
                    made = await create_backup(eve, place)
                    assert {"t", "k"} <= {topic.name for topic in made.topics}
                    return
                with pytest.raises(AccessDeniedError, match="may not"):
                    await create_backup(eve, place)
            assert not any(host.hold.holder for host in nodes.nodes[0].hosts.values())

    tried()
