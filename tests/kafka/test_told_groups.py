"""What nodes tell of groups: to operators, on pages, in the API and in metrics, whoever leads what."""

import asyncio
from typing import Any
from unittest.mock import patch

from antiphon.errors import AntiphonError
from antiphon.model.groups import (
    GetGroups,
    GroupKind,
    GroupMember,
    GroupsReply,
    GroupState,
    HeldShare,
    merged,
)
from antiphon.model.groups import GroupPosition as At
from antiphon.node.config import Ports
from antiphon.server import group_lag
from antiphon.server.group_lag import AGE_S
from antiphon.transactions.group_offsets import Committed, OffsetAt
from tests.dashboard.looking import HTTP_PORT, page
from tests.kafka.test_share_groups import ACCEPT, RELEASE, Scene, a_group
from tests.node.in_process import KAFKA_PORT, NATIVE_PORT, in_virtual_time
from tests.server.test_metrics import shown

LISTENERS = Ports(NATIVE_PORT, KAFKA_PORT, -1, HTTP_PORT)


async def told(scene: Scene, group: str = "g", **asked: Any) -> GroupState | None:
    """What the nodes say that are up, put together."""
    replies = []
    for node in scene.served.nodes.nodes.values():
        try:
            replies.append(await node.gateway.questions.ask(node.node_id, GetGroups(group, **asked), 3.0))
        except AntiphonError:
            continue
    return merged(replies)


@in_virtual_time
async def test_the_coordinator_tells_of_members_and_the_leaders_of_locks() -> None:
    async with a_group(3) as scene:
        await scene.served.lead("__groups", 1)
        await scene.append(5)
        one = await scene.member(at=1)
        fetches = await scene.connect(0)
        one.client, beats = fetches, one.client
        assert await one.take() == [(0, 4, 1)]
        found = await told(scene)
        assert found is not None
        assert (found.kind, found.state, found.member_count) == (GroupKind.SHARE, "Stable", 1)
        assert [member.assigned for member in found.members] == [(("t", (0,)),)]
        assert found.positions == (At("t", 0, 0, 0, 5, 5),)
        assert await one.accept(1, 3) == 0
        found = await told(scene)
        assert found is not None
        assert found.positions == (At("t", 0, 0, 3, 5, 2),)
        assert found.positions[0].lag == 2
        assert await told(scene, "nobody") is None
        one.client = beats
        await one.heartbeat(member_epoch=-1)
        found = await told(scene)
        assert found is not None
        assert (found.state, found.members) == ("Empty", ())


@in_virtual_time
async def test_pages_the_api_and_metrics_show_a_share_group() -> None:
    async with a_group(ports=LISTENERS) as scene:
        await scene.append(6)
        one = await scene.member()
        server = scene.served.nodes.servers[0]
        assert shown(server)["antiphon_share_groups"][()] == 1
        assert shown(server)["antiphon_share_lag_records"][()] == 0, "nobody has fetched yet"
        assert await one.take() == [(0, 5, 1)]
        assert await one.accept(0, 1, ACCEPT) == 0
        assert await one.accept(2, 2, RELEASE) == 0
        metrics = shown(server)
        assert metrics["antiphon_share_group_members"][()] == 1
        assert metrics["antiphon_share_partitions"][()] == 1
        assert metrics["antiphon_share_locked_records"][()] == 3
        assert metrics["antiphon_share_lag_records"][()] == 4
        assert metrics["antiphon_share_deliveries_total"][()] == 6
        said = metrics["antiphon_share_acknowledgements_total"]
        assert {name: count for (name,), count in said.items() if count} == {"accept": 2, "release": 1}
        assert set(said) == {("accept",), ("gap",), ("reject",), ("release",), ("renew",)}
        listed = (await page("/ui/groups")).text
        assert 'href="/ui/groups/g"' in listed
        assert "<td>share</td><td>Stable</td>" in listed
        shows = (await page("/ui/groups/g")).text
        assert "<dt>Locked</dt><dd>3</dd>" in shows
        assert "<dt>Lag in all</dt><dd>4</dd>" in shows
        assert '"locked":3' in (await page("/api/groups/g")).text
        assert '"kind":"share","state":"Stable","members":1' in (await page("/api/groups")).text
        await asyncio.sleep(1.1)  # the locks end
        assert shown(server)["antiphon_share_lock_timeouts_total"][()] == 3
        for _ in range(2):
            await one.take()
            await asyncio.sleep(1.1)
        assert shown(server)["antiphon_share_delivery_limit_total"][()] == 4


@in_virtual_time
async def test_a_page_says_so_where_the_coordinator_does_not_answer() -> None:
    async with a_group(3, ports=LISTENERS) as scene:
        await scene.append(2)
        await scene.served.lead("__groups", 1)
        one = await scene.member(at=1)
        assert one.owned == [0]
        assert '"kind":"share"' in (await page("/api/groups/g")).text
        scene.served.nodes.kill(1)
        answer = await page("/api/groups/g")
        assert answer.status == 503, answer.text

        async def is_back() -> bool:
            return '"kind":"share"' in (await page("/api/groups/g")).text

        for _ in range(40):
            if await is_back():
                break
            await asyncio.sleep(0.5)
        assert await is_back(), "another node coordinates the group"


def test_answers_of_nodes_become_one_group() -> None:
    share = GroupState("g", GroupKind.SHARE, "Stable", 1, 3, (), (At("t", 0, 5, end=9), At("t", 1, 2)), 2)
    replies = [GroupsReply(held=(HeldShare("t", 0, 4),)), GroupsReply((share,)), GroupsReply()]
    found = merged(replies)
    assert found is not None
    assert [(one.locked, one.lag) for one in found.positions] == [(4, 4), (-1, None)]
    old = GroupState("g", GroupKind.SHARE, "Stable", 7, 2)
    for answers in ([GroupsReply((old,)), *replies], [*replies, GroupsReply((old,))]):
        assert merged(answers) == found, "a former coordinator has an older epoch"
    member = GroupMember("m", "", "c", "h", 1, ("t",), ())
    billing = GroupState("b", GroupKind.CLASSIC, "Stable", 1, 1, (member,))
    assert merged([GroupsReply((billing,))]) is billing
    assert merged([]) is None


@in_virtual_time
async def test_metrics_show_how_far_groups_are_behind() -> None:
    async with a_group(3, ports=LISTENERS) as scene:
        await scene.served.lead("__groups", 0)
        await scene.append(6)
        one = await scene.member()
        assert await one.take() == [(0, 5, 1)]
        assert await one.accept(0, 1, ACCEPT) == 0
        server, name = scene.served.nodes.servers[0], "antiphon_group_lag_records"
        offsets = server.transactions.offsets
        topic_id = server.node.gateway.topic("t").topic_id
        await offsets.commit('be"hind', [OffsetAt("t", 0, Committed(2, -1, "", 0, topic_id))])
        await offsets.commit("nowhere", [OffsetAt("t", 7, Committed(2, -1, "", 0, topic_id))])
        assert shown(server).get(name, {}) == {}, "nobody has asked before"
        await asyncio.sleep(0.5)
        assert shown(server)[name] == {("g",): 4, ('be"hind',): 4}
        await scene.append(3)
        await asyncio.sleep(0.5)
        assert shown(server)[name] == {("g",): 4, ('be"hind',): 4}, "that was a moment ago"
        await asyncio.sleep(AGE_S)
        shown(server)
        await asyncio.sleep(0.5)
        assert shown(server)[name] == {("g",): 7, ('be"hind',): 7}
        await asyncio.sleep(1.5)
        with patch.object(group_lag, "GONE_S", 1.0):
            assert shown(server).get(name, {}) == {}, "nobody has asked for long"
