"""The bench of rebalances measures what the members themselves say that they have."""

import pytest

pytest.importorskip("confluent_kafka")

from antiphon.tools.bench import rebalance
from antiphon.tools.bench.rebalance import Protocol

HEARTBEAT_MS = 100


@pytest.mark.slow
@pytest.mark.cluster
def test_a_member_goes_and_comes_in_both_protocols(monkeypatch: pytest.MonkeyPatch) -> None:
    protocols = (Protocol("classic", "range", HEARTBEAT_MS), Protocol("consumer", "uniform", HEARTBEAT_MS))
    monkeypatch.setattr(rebalance, "PROTOCOLS", protocols)
    monkeypatch.setattr(rebalance, "MEMBERS", 3)
    rows = rebalance.measure_rebalance(0.0)
    assert [row["protocol"] for row in rows] == ["classic", "consumer"]
    for row in rows:
        assert row["times"] == 1
        assert row["heartbeat_ms"] == HEARTBEAT_MS
        assert 0 < row["one_comes_s"] <= row["longest_s"] < 5  # the interval where none is given
        assert 0 < row["one_goes_s"] <= row["longest_s"]
