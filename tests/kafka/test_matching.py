"""Regular expressions of clients: what a match may take is bounded, and others are served meanwhile."""

import asyncio
import time
from unittest.mock import patch

import pytest

from antiphon.coordination.patterns import PROGRAM_MAX, BadRegexError, compiled, cost
from antiphon.gateway.turns import Turns
from antiphon.kafka import error_codes as code
from antiphon.kafka import matching
from antiphon.kafka.handlers.group_topics import GroupTopics
from antiphon.kafka.messages import consumer_groups as m
from antiphon.kafka.messages import transactions
from antiphon.model.metadata import Kind
from antiphon.security.authorizer import EVERYTHING
from tests.kafka.raw import RawClient, ask, listening
from tests.node.in_process import in_virtual_time

SLOW = "(a?){1,100}[ab]+"  # RE2 cannot keep the states that it meets in such names
NAMES = [f"{'a' * 240}-{number:04}" for number in range(60)]


@pytest.mark.parametrize("regex", ["(a?){1,1000}b", "(.{0,100}){0,9}b", "(((a?){10}){10}){9}b"])
def test_expressions_whose_program_is_large_are_refused(regex: str) -> None:
    with pytest.raises(BadRegexError, match=r"steps for each letter, 1,000 are taken: repeat less in it"):
        compiled(regex)


def test_ordinary_expressions_are_taken_and_cheap() -> None:
    for regex in ("orders-.*", "(orders|payments)-v[0-9]+", "(?i)team-[a-z0-9_.-]+\\.(dev|prod)", ".{1,100}"):
        pattern = compiled(regex)
        assert cost(pattern, ["x" * 30]) < 30_000


def test_a_match_takes_no_longer_than_is_counted() -> None:
    for regex in (SLOW, "((a?){0,30}){0,5}b", "(a{0,30}){0,9}b"):
        pattern = compiled(regex)
        assert pattern.programsize <= PROGRAM_MAX
        began_s = time.process_time()
        for name in NAMES:
            pattern.fullmatch(name)
        took_s = time.process_time() - began_s
        assert took_s < cost(pattern, NAMES) * 200e-9  # 40 ns of a quiet core


async def heartbeat(client: RawClient, regex: str, member: str = "m") -> m.ConsumerGroupHeartbeatResponse:
    asked = m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member,
        member_epoch=0,
        rebalance_timeout_ms=5_000,
        subscribed_topic_names=None,
        subscribed_topic_regex=regex,
        topic_partitions=[],
    )
    answer: m.ConsumerGroupHeartbeatResponse = await ask(client, asked)
    return answer


@in_virtual_time
async def test_others_have_their_turn_while_a_slow_expression_is_matched() -> None:
    async with listening() as (served, connect):
        for name in NAMES[:20]:
            await served.create(name)
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        await served.lead("__groups", 0)
        client = await connect()
        with patch.object(Turns, "next", autospec=True, side_effect=Turns.next) as turn:
            assert (await heartbeat(client, SLOW)).error_code == code.NONE
        assert cost(compiled(SLOW), NAMES[:1]) > matching.PIECE_STEPS
        assert turn.call_count >= 19  # between the names


@in_virtual_time
async def test_what_may_take_too_long_for_so_many_topics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as (served, connect):
        await served.create("t" * 200)
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        await served.lead("__groups", 0)
        client = await connect()
        monkeypatch.setattr(matching, "STEPS_MAX", 5_000)
        answer = await heartbeat(client, ".{1,100}")
        assert answer.error_code == code.INVALID_REGULAR_EXPRESSION
        assert "may take too long for 1 names" in (answer.error_message or "")
        assert (await heartbeat(client, "t.*")).error_code == code.NONE


@in_virtual_time
async def test_who_asks_for_the_same_expression_waits_for_one_look() -> None:
    async with listening() as (served, _):
        for name in NAMES[:4]:
            await served.create(name)
        topics, turns = GroupTopics(served.nodes.nodes[0].gateway), 0

        async def turn() -> None:
            nonlocal turns
            turns += 1
            await asyncio.sleep(0)

        looks = [asyncio.create_task(topics.matching(SLOW, EVERYTHING, turn)) for _ in range(5)]
        await asyncio.sleep(0)
        looks[0].cancel()  # its connection is gone: the next one looks
        found = await asyncio.gather(*looks, return_exceptions=True)
        assert found[1:] == [()] * 4  # each name has a dash
        pieces = -(-cost(compiled(SLOW), NAMES[:4]) // matching.PIECE_STEPS)
        assert turns < 2 * pieces
        assert await topics.matching("a+-0001", EVERYTHING, turn) == (NAMES[1],)


@in_virtual_time
async def test_lists_of_transactions_are_bounded_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as (served, connect):
        await served.create("__transactions", kind=Kind.TABLE, internal=True)
        await served.lead("__transactions", 0)
        client = await connect()
        asked = transactions.ListTransactionsRequest(
            state_filters=[], producer_id_filters=[], transactional_id_pattern="(a?){1,1000}b"
        )
        assert (await ask(client, asked)).error_code == code.INVALID_REGULAR_EXPRESSION
        monkeypatch.setattr(matching, "STEPS_MAX", -1)
        asked.transactional_id_pattern = "a.*"
        assert (await ask(client, asked)).error_code == code.INVALID_REGULAR_EXPRESSION
