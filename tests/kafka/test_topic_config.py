"""The listener's knowledge of settings and names agrees with those who decide about them."""

import pytest

from antiphon.coordination import topic_rules
from antiphon.coordination.topic_settings import TOPIC_SETTINGS
from antiphon.errors import InvalidRequestError
from antiphon.kafka.topic_config import NAME_LENGTH_MAX, name_problem
from antiphon.log.config import Compaction, LogConfig
from antiphon.model import internal
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.node.config import Member, NodeConfig
from antiphon.node.topic_settings import read_settings


def test_the_listener_knows_the_settings_that_the_coordinator_takes() -> None:
    assert set(TOPIC_SETTINGS) == set(topic_rules.SETTINGS)


@pytest.mark.parametrize("kind", Kind)
def test_defaults_are_what_a_node_does_without_a_setting(kind: Kind) -> None:
    topic = TopicMeta("t", bytes(16), kind, 3, "oxia", ())
    node = NodeConfig(cluster_id="c", node_id=0, nodes=[Member(0, "h:1")])
    settings = read_settings(topic, node)
    log = settings.log
    assert log == LogConfig(flush_interval_ms=node.flush_interval_ms)  # the node's own
    defaults = {name: setting.default for name, setting in TOPIC_SETTINGS.items()}
    assert defaults["segment.bytes"] == str(log.segment_bytes)
    assert defaults["segment.ms"] == str(log.segment_ms)
    assert defaults["retention.bytes"] == str(log.retention_bytes)
    assert defaults["retention.ms"] == str(log.retention_ms)
    assert defaults["flush"] == log.flush
    assert defaults["flush.ms"] == str(node.flush_interval_ms)
    assert defaults["max.message.bytes"] == str(settings.max_message_bytes)


def test_the_policy_decides_what_retention_and_compaction_do() -> None:
    def log_of(**config: str) -> LogConfig:
        named = {name.replace("_", "."): value for name, value in config.items()}
        named |= {"retention.ms": "5", "retention.bytes": "6", "min.cleanable.dirty.ratio": "0.25"}
        topic = TopicMeta("t", bytes(16), Kind.TOPIC, 3, "oxia", (), named)
        return read_settings(topic, NodeConfig(cluster_id="c", node_id=0, nodes=[Member(0, "h:1")])).log

    deleted, compacted = log_of(), log_of(cleanup_policy="compact", max_compaction_lag_ms="70")
    both = log_of(cleanup_policy="compact,delete", delete_retention_ms="8")
    assert (deleted.retention_ms, deleted.retention_bytes, deleted.compaction) == (5, 6, None)
    assert (compacted.retention_ms, compacted.retention_bytes) == (-1, -1)
    assert compacted.compaction == Compaction(max_lag_ms=70, dirty_ratio=0.25)
    assert compacted.segment_ms == 70, (
        "or the newest segment, which is never compacted, would stay open for longer"
    )
    assert (both.retention_ms, both.retention_bytes) == (5, 6)
    assert both.compaction == Compaction(delete_retention_ms=8, dirty_ratio=0.25)


def test_logs_of_the_clusters_own_tables_have_a_bound() -> None:
    node = NodeConfig(cluster_id="c", node_id=0, nodes=[Member(0, "h:1")])
    for name, kind in internal.KINDS.items():
        log = read_settings(TopicMeta(name, bytes(16), kind, 3, "oxia", (), internal=True), node).log
        is_table = kind is Kind.TABLE  # what is needed of `__staged` is known, and the rest is trimmed
        assert log.retention_bytes == (64 * 1024 * 1024 if is_table else -1)


@pytest.mark.parametrize("setting", TOPIC_SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_default_can_be_set(setting: object) -> None:
    known = next(s for s in TOPIC_SETTINGS.values() if s is setting)
    assert known.problem(known.default) is None
    topic_rules.check_config({known.name: known.default}, replicas=1)


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "A.b_c-9",
        "x" * NAME_LENGTH_MAX,
        "",
        ".",
        "..",
        "a b",
        "a/b",
        "ä",
        "x" * (NAME_LENGTH_MAX + 1),
        "__cluster",
    ],
)
def test_names_are_judged_alike(name: str) -> None:
    try:
        topic_rules.check_name(name)
    except InvalidRequestError:
        assert name_problem(name)
    else:
        assert name_problem(name) is None


def test_every_setting_of_a_log_reaches_it() -> None:
    values = {"segment.bytes": 5000, "segment.ms": 6, "retention.ms": 7, "retention.bytes": 8}
    topic = TopicMeta(
        "t", bytes(16), Kind.TOPIC, 3, "oxia", (), {name: str(value) for name, value in values.items()}
    )
    log = read_settings(topic, NodeConfig(cluster_id="c", node_id=0, nodes=[Member(0, "h:1")])).log
    found = (log.segment_bytes, log.segment_ms, log.retention_ms, log.retention_bytes)
    assert found == tuple(values.values())


def test_the_group_table_is_the_clusters_own() -> None:
    assert name_problem("__groups")
