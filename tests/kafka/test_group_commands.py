"""`antiphon groups` over groups of real clients: consumers of both protocols, and share groups."""

import json
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from typer.testing import CliRunner

from antiphon.cli.main import app
from antiphon.model.groups import GetGroups, GroupsReply
from tests.kafka.served import Served
from tests.kafka.test_share_clients import configure, poll
from tests.node.processes import eventually


def ask(served: Served, *words: str, code: int = 0) -> str:
    servers = served.do(lambda: served.node.meta().native)
    done = CliRunner().invoke(app, ["groups", *words, "--servers", servers])
    assert done.exit_code == code, done.output
    return done.output


def describe(served: Served, group: str) -> Any:
    return json.loads(ask(served, "describe", group, "--json"))


def filled(served: Served, records: int = 20, shards: int = 2) -> str:
    topic = f"told-{uuid.uuid4().hex[:8]}"
    served.create(topic, shards)
    producer = Producer({"bootstrap.servers": served.address})
    for number in range(records):
        producer.produce(topic, str(number).encode(), partition=number % shards)
    assert not producer.flush(20)
    return topic


def test_a_share_group_is_listed_and_described_with_what_its_members_work_on(served: Served) -> None:
    topic, group = filled(served), f"workers-{uuid.uuid4().hex[:6]}"
    configure(served, group, auto_offset_reset="earliest")
    settings = {"share.acknowledgement.mode": "explicit", "client.id": "alpha"}
    client = ShareConsumer({"bootstrap.servers": served.address, "group.id": group, **settings})
    client.subscribe([topic])
    found = poll(client, 20)
    locked = describe(served, group)
    assert [(one["lag"], one["done"], one["locked"]) for one in locked["positions"]] == [(10, 0, 10)] * 2
    (member,) = locked["members"]
    assert (member["client_id"], member["topics"], member["assigned"]) == ("alpha", [topic], {topic: [0, 1]})
    for message in found:
        client.acknowledge(
            message, AcknowledgeType.RELEASE if message.offset() < 2 else AcknowledgeType.ACCEPT
        )
    assert all(error is None for error in client.commit_sync(10).values())
    told = describe(served, group)
    assert (told["kind"], told["state"], told["lag"]) == ("share", "Stable", 4)
    assert [(one["offset"], one["end"], one["lag"], one["done"]) for one in told["positions"]] == [
        (0, 10, 2, 8)
    ] * 2
    assert {"group": group, "kind": "share", "state": "Stable", "members": 1, "node": 0} in json.loads(
        ask(served, "list", "--kind", "share", "--json")
    )
    assert group not in ask(served, "list", "--kind", "consumer")
    text = ask(served, "describe", group)
    assert "kind: share" in text
    assert f"{topic}  0      0      10   2    8" in text
    for message in poll(client, 4):
        client.acknowledge(message, AcknowledgeType.ACCEPT)
    client.commit_sync(10)
    client.close()
    eventually(lambda: describe(served, group)["state"] == "Empty")
    done = describe(served, group)
    assert (done["members"], done["lag"], [one["offset"] for one in done["positions"]]) == ([], 0, [10, 10])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_of_consumers_is_described_with_its_lag(served: Served, protocol: str) -> None:
    topic, group = filled(served), f"billing-{protocol}-{uuid.uuid4().hex[:6]}"
    settings = {"enable.auto.commit": False, "group.protocol": protocol, "client.id": "c"}
    client = Consumer(
        {
            "bootstrap.servers": served.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )
    client.subscribe([topic])
    ends_s, read = time.monotonic() + 20, 0
    while read < 20 and time.monotonic() < ends_s:
        read += len(client.consume(20 - read, 0.5))
    assert read == 20
    assert "no offsets are committed" in ask(served, "describe", group)
    client.commit(asynchronous=False)
    filled_again = Producer({"bootstrap.servers": served.address})
    filled_again.produce(topic, b"more", partition=1)
    filled_again.flush(10)
    told = describe(served, group)
    assert (told["kind"], told["state"], told["lag"]) == (protocol, "Stable", 1)
    assert [(one["offset"], one["end"], one["lag"]) for one in told["positions"]] == [
        (10, 10, 0),
        (10, 11, 1),
    ]
    assert "locked" not in told["positions"][0]
    assert [one["assigned"] for one in told["members"]] == [{topic: [0, 1]}]
    client.close()
    eventually(lambda: describe(served, group)["members"] == [])
    assert group in ask(served, "list")


def test_positions_are_told_piece_by_piece(served: Served) -> None:
    topic, group = filled(served, 0, 7), f"wide-{uuid.uuid4().hex[:6]}"
    configure(served, group, auto_offset_reset="earliest")
    client = ShareConsumer({"bootstrap.servers": served.address, "group.id": group})
    client.subscribe([topic])
    eventually(lambda: not client.poll(0.2) and len(describe(served, group)["positions"]) == 7)

    async def piece() -> GroupsReply:
        asked = GetGroups(group, start=5, limit=4)
        reply = await served.node.gateway.questions.ask(0, asked, 5.0)
        assert isinstance(reply, GroupsReply)
        return reply

    (found,) = served.call(piece).groups
    assert ([one.shard for one in found.positions], found.position_count) == ([5, 6], 7)

    async def names() -> tuple[list[str], list[str], bool]:
        ask_node = served.node.gateway.questions.ask
        whole = await ask_node(0, GetGroups(), 5.0)
        first = await ask_node(0, GetGroups(limit=1), 5.0)
        rest = await ask_node(0, GetGroups(after=first.groups[0].group), 5.0)
        return (
            [one.group for one in whole.groups],
            [one.group for one in (*first.groups, *rest.groups)],
            first.more,
        )

    whole, pieces, more = served.call(names)
    assert whole == pieces
    assert more == (len(whole) > 1)
    client.close()


def test_a_group_that_there_is_not_is_said_so(served: Served) -> None:
    assert "there is no group 'nobody'" in ask(served, "describe", "nobody", code=2)
