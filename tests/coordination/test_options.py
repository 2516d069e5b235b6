"""Settings of topics that nodes of an earlier version would pass over: who may have them, and who is let in then."""

from typing import Any

import pytest

from antiphon.coordination import cluster_records
from antiphon.coordination.cluster_records import (
    EXPECTED_FORMAT,
    FORMAT,
    FORMAT_HEADER,
    OPTIONS,
    KnownSince,
    headers_of,
    options_in,
    topic_record,
)
from antiphon.coordination.topic_rules import SETTINGS
from antiphon.errors import InvalidRequestError
from antiphon.model.cluster import CommandDone
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.requests import AlterTopic, CreateTopic
from tests.coordination.test_coordinator import create, started
from tests.coordination.world import World

CONDITIONS = {"expected.offset.header": "true"}
CHANGED: dict[str, str | None] = {**CONDITIONS}
EARLIER = EXPECTED_FORMAT - 1


def come_back(world: World, node_id: int, reads: int) -> bool:
    """The node's process is replaced by one that reads `reads`; is it let in?"""
    world.nodes[node_id].reads = reads
    world.crash_node(node_id)
    assert world.run(3_000, lambda: not world.state.is_alive(node_id))
    world.start_node(node_id)
    return world.run(
        3_000, lambda: world.state.is_alive(node_id) and world.state.nodes[node_id].reads == reads
    )


def refusal(answer: Any) -> str:
    assert isinstance(answer, InvalidRequestError), answer
    return answer.message


def test_no_topic_gets_it_while_a_node_does_not_know_it() -> None:
    world = started(nodes=4)
    create(world, "t")
    assert come_back(world, 2, EARLIER)
    assert come_back(world, 3, EARLIER - 1)
    for asked in (
        CreateTopic("c", replicas=1, config=CONDITIONS),
        CreateTopic("c", replicas=1, config=CONDITIONS, validate_only=True),
        AlterTopic("t", config=CHANGED),
        AlterTopic("t", config=CHANGED, validate_only=True),
    ):
        said = refusal(world.ask(asked))
        assert f"expected.offset.header=true takes nodes that read format {EXPECTED_FORMAT}" in said
        assert f"node 2 reads up to {EARLIER}, node 3 reads up to {EARLIER - 1}." in said
        assert "antiphon upgrade --check" in said
    assert "c" not in world.state.topics
    assert world.state.topics["t"].config == {}
    assert isinstance(world.ask(AlterTopic("t", config={"expected.offset.header": "false"})), CommandDone), (
        "which is what an earlier version does"
    )


def test_a_node_that_is_down_counts_as_what_it_was() -> None:
    world = started(nodes=4)
    assert come_back(world, 3, EARLIER)
    world.crash_node(3)
    assert world.run(3_000, lambda: not world.state.is_alive(3))
    assert "node 3 reads up to" in refusal(world.ask(CreateTopic("c", config=CONDITIONS)))


def test_topics_get_it_when_the_last_node_is_upgraded() -> None:
    world = started(nodes=4)
    create(world, "t")
    assert come_back(world, 3, EARLIER)
    assert come_back(world, 3, FORMAT)
    assert isinstance(world.ask(CreateTopic("c", config=CONDITIONS)), CommandDone)
    assert isinstance(world.ask(AlterTopic("t", config=CHANGED)), CommandDone)


def test_a_node_that_does_not_know_it_is_not_let_in_any_more() -> None:
    """So nothing places a replica there. A voter of such a version stops at the topic's record besides."""
    world = World(5, initial_nodes=4)
    world.start_coordinator()
    for node_id in range(4):
        world.start_node(node_id)
    assert world.run(5_000, world.all_online)
    assert isinstance(world.ask(CreateTopic("c", shards=4, config=CONDITIONS)), CommandDone)
    assert not come_back(world, 3, EARLIER)
    assert not world.state.is_alive(3)
    world.nodes[4].reads = EARLIER
    world.start_node(4)
    world.run(3_000)
    assert 4 not in world.state.nodes
    refusals = {one.message for one in world.answers.values() if isinstance(one, InvalidRequestError)}
    [refused] = [message for message in refusals if message.startswith("node 4 ")]
    assert (
        f"reads format {EARLIER} of the cluster's records, and topic 'c' with expected.offset.header=true"
        in refused
    )
    assert "a later version" in refused
    assert come_back(world, 3, FORMAT)
    assert come_back(world, 4, FORMAT)


def test_a_node_of_such_a_version_that_belongs_to_the_cluster_comes_back() -> None:
    """Its topic is from a version that knew the setting, and did not say so."""
    world = started(nodes=4)
    for node_id in range(4):
        assert come_back(world, node_id, EARLIER)
    with pytest.MonkeyPatch.context() as of_then:
        of_then.setattr(cluster_records, "OPTIONS", ())
        assert isinstance(world.ask(CreateTopic("c", config=CONDITIONS)), CommandDone)
    assert come_back(world, 3, EARLIER)


def test_once_no_topic_has_it_earlier_versions_are_let_in_again() -> None:
    world = started(nodes=4)
    assert isinstance(world.ask(CreateTopic("c", config=CONDITIONS)), CommandDone)
    assert not come_back(world, 3, EARLIER)
    assert isinstance(world.ask(AlterTopic("c", config={"expected.offset.header": None})), CommandDone)
    assert come_back(world, 3, EARLIER)


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_the_record_of_such_a_topic_says_its_format(option: KnownSince) -> None:
    assert option.setting in SETTINGS
    assert option.reads <= FORMAT
    for value, expected in ((option.value, ((FORMAT_HEADER, b"%d" % option.reads),)), ("x", ())):
        config = {option.setting: value}
        assert options_in(config) == ([option] if expected else [])
        key, record = topic_record(TopicMeta("t", bytes(16), Kind.TOPIC, 1, "", (), config))
        assert headers_of(key, record) == expected
