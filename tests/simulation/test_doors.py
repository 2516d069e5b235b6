"""Clients of Kafka's protocol and of HTTP in the world of whole nodes: clean seeds, and judges that see planted mistakes."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.simulation.cluster.options import PROFILES, draw_options
from antiphon.simulation.cluster.run import ClusterResult, run_cluster

SHORT = {
    "fault_ms": 1_500,
    "appenders": 1,
    "putters": 1,
    "bulk_writers": 0,
    "topic_shards": 1,
    "table_shards": 1,
}
DOORS = {"kafka_producers": 2, "kafka_consumers": 1}


def _words(result: ClusterResult) -> str:
    failure = result.failure
    if failure is None:
        return ""
    return "\n".join([failure.message, result.options.words(), *failure.trace])


@pytest.mark.parametrize("profile", PROFILES)
def test_promises_are_kept(profile: str) -> None:
    result = run_cluster(draw_options(3, profile, **{**SHORT, **DOORS}))
    assert result.failure is None, _words(result)
    assert result.operations["produced"] > 50
    assert result.operations["fetched"] >= result.operations["produced"] // 2


def _caught(
    invariants: set[str], planted: AbstractContextManager[Any], doors: dict[str, int], seeds: range
) -> None:
    for seed in seeds:
        result = run_cluster(draw_options(seed, "oxia", **{**SHORT, **doors}), planted=planted)
        if result.failure is not None:
            assert result.failure.invariant in invariants, _words(result)
            return
    pytest.fail(f"nothing was seen in seeds {seeds}")


def test_a_forgotten_check_of_sequences_is_seen() -> None:
    _caught(
        {"exactly-once", "order"},
        patch("antiphon.log.producer_state._check_normal", lambda _header, _batches: None),
        {"kafka_producers": 2, "reset_weight": 6, "fault_every_ms": 150},
        range(1, 6),
    )


def test_a_fetch_of_what_is_not_committed_is_seen() -> None:
    _caught(
        {"below-watermark", "fetched-is-committed", "watermark-committed"},
        patch("antiphon.kafka.fetch.ISOLATION", "uncommitted"),
        {"kafka_producers": 2, "kafka_consumers": 1},
        range(1, 6),
    )
