"""One client's transactional ids, groups and share sessions keep no other client out."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock, patch

import pytest

from antiphon.gateway.shares import asking
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups import classic_groups, consumer_groups
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.messages import groups as gm
from antiphon.kafka.share_sessions import ShareSessions
from antiphon.security.session import Session
from antiphon.transactions import coordinator
from tests.coroutines import on_a_loop
from tests.kafka.raw import RawClient, ask, listening
from tests.kafka.transactional import Transactional, begun
from tests.node.in_process import in_virtual_time

MOST = 8


class Asker:
    """Who is the client of all connections now."""

    name = "greedy"


@pytest.fixture
def asker() -> Iterator[Asker]:
    found = Asker()
    with (
        patch.object(Session, "client", lambda *_: found.name),
        patch.object(coordinator, "IDS_MAX", MOST),
        patch.object(classic_groups, "GROUPS_MAX", MOST),
        patch.object(consumer_groups, "GROUPS_MAX", MOST),
    ):
        yield found


def test_transactional_ids(asker: Asker) -> None:
    @in_virtual_time
    async def run() -> None:
        async with listening() as (_, connect):
            client = await connect()
            first = await begun(Transactional(client, "id-0"))
            made = [await Transactional(client, f"id-{n}").init() for n in range(1, MOST)]
            assert made == [code.NONE] * 3 + [code.COORDINATOR_NOT_AVAILABLE] * 4, (
                "an error to try again after"
            )
            assert await first.init() == code.NONE, "what is there goes on"
            asker.name = "other"
            client = await connect()
            assert await Transactional(client, "others").init() == code.NONE
            assert await Transactional(client, "id-1").init() == code.NONE, "also at whoever has its right"

    run()


async def joined(client: RawClient, group: str) -> int:
    protocols = [gm.JoinProtocol(name="range", metadata=b"r")]
    request = gm.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=protocols,
    )
    return int((await ask(client, request, 5)).error_code)


def test_groups_of_the_classic_protocol(asker: Asker) -> None:
    @in_virtual_time
    async def run() -> None:
        async with listening() as (_, connect):
            client = await connect()
            await Transactional(client).find("g-0")  # makes the table
            while await joined(client, "g-0") in {code.COORDINATOR_LOAD_IN_PROGRESS, code.NOT_COORDINATOR}:
                pass
            made = [await joined(client, f"g-{n}") for n in range(1, MOST)]
            assert made == [code.MEMBER_ID_REQUIRED] * 3 + [code.COORDINATOR_NOT_AVAILABLE] * 4
            assert await joined(client, "g-1") == code.MEMBER_ID_REQUIRED, (
                "to a group that is there others come"
            )
            asker.name = "other"
            client = await connect()
            assert await joined(client, "others") == code.MEMBER_ID_REQUIRED

    run()


@on_a_loop
async def test_share_sessions() -> None:
    sessions, connection = ShareSessions(4), Mock()
    refused: list[Any] = []
    for client, member in (
        ("greedy", "a"),
        ("greedy", "b"),
        ("greedy", "c"),
        ("other", "d"),
        ("greedy", "c"),
    ):
        asking.set(client)
        try:
            sessions.open(("g", member), connection)
        except RefusedError as error:
            refused.append((member, error.error_code))
    assert refused == [("c", code.SHARE_SESSION_LIMIT_REACHED)] * 2
    asking.set("greedy")
    sessions.close(("g", "a"))
    sessions.open(("g", "c"), connection)
    asking.set(None)
