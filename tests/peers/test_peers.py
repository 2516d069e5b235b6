"""The harness that compares with peers: it measures Antiphon, and it tells medians and ratios as they are."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("hdrh")

from tests.peers import measure, report
from tests.peers import run as run_module
from tests.peers.clients.process import result as client_result
from tests.peers.clients.values import random_values
from tests.peers.measure import figures
from tests.peers.rows import ROWS, chosen
from tests.peers.run import Run, compare, write
from tests.peers.servers import OURS, PEERS
from tests.peers.servers.go_peers import MODULES, GoPeer
from tests.peers.usage import Usage, shares

SECONDS = 0.3
FAST = ("produce-one/100B", "put/64")
GROUPS = ("rebalance/10/range", "rebalance/10/cooperative-sticky", "transact/1x1KB/1")


@pytest.mark.slow
@pytest.mark.cluster
def test_rows_run_against_antiphon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "WARM_S", 0.2)  # figures are to be there; nobody compares them
    monkeypatch.setattr(run_module, "WARM_TRIES", 1)
    said: list[str] = []
    run = Run([PEERS[OURS]], [ROWS[name] for name in FAST], SECONDS, said.append)
    (found,) = compare(run, 1, True, {}, "")
    assert not found["skipped"], said
    for name in FAST:
        (once,) = found["rows"][name]["peers"][OURS]
        assert once["count"] > 0
        assert once["failed"] == 0
        assert 0 < once["rate"] <= once["count"] / SECONDS
        assert 0 < once["p50_ms"] <= once["p99_ms"]
        assert 0 < once["shares"]["clients"] < 1
        assert once["written_bytes_per_1000"] > 64_000  # acknowledged means written, on three nodes
    assert found["rows"]["put/64"]["peers"][OURS][0]["cpu_s_per_1000"] > 0  # counted in steps of 10 ms
    text = write(tmp_path, found)
    assert all(f"| {name} | Antiphon |" in text for name in FAST)


@pytest.mark.slow
@pytest.mark.cluster
def test_rebalances_and_transactions_have_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "WARM_S", 0.0)
    monkeypatch.setattr(run_module, "WARM_TRIES", 1)
    said: list[str] = []
    (found,) = compare(
        Run([PEERS[OURS]], [ROWS[name] for name in GROUPS], SECONDS, said.append), 1, True, {}, ""
    )
    assert not found["skipped"], said
    for name in GROUPS:
        (once,) = found["rows"][name]["peers"][OURS]
        assert once["count"] >= (2 if name.startswith("rebalance") else 1)
        assert 0 < once["p50_ms"] <= once["p99_ms"]


def _told(rates: dict[str, list[float]]) -> dict[str, Any]:
    peers = {name: [{"rate": rate, "p50_ms": 1.0} for rate in found] for name, found in rates.items()}
    return {
        "peers": {name: {"title": name.title(), "settings": "-"} for name in rates},
        "skipped": {"oxia": "go is not installed"},
        "rows": {"put/1": {"protocol": "table", "unit": "operations", "job": {}, "peers": peers}},
    }


def test_ratios_are_of_medians_with_the_spread_beside(tmp_path: Path) -> None:
    told = _told({"antiphon": [100, 300, 200], "etcd": [50, 400, 100]})
    text = report.markdown(told, OURS)
    assert "| put/1 | Antiphon | 200 (100..300) |  |" in text
    assert "| put/1 | Etcd | 100 (50..400) | **2.00** |" in text
    assert "| put/1, operations | 200 | 100 (**2.00**) |" in text
    assert "- oxia: go is not installed" in text
    report.draw(tmp_path / "peers.png", told, OURS)
    assert (tmp_path / "peers.png").stat().st_size > 5_000


def test_clients_of_one_row_are_added_up() -> None:
    slow, fast = client_result(100, 2.0, [1000.0] * 10), client_result(300, 1.0, [3000.0] * 30, failed=2)
    row = figures([slow, fast], Usage(0.3, 0.1, 8_000, -1))
    assert (row["count"], row["failed"], row["rate"]) == (400, 2, 350.0)
    assert (row["cpu_s_per_1000"], row["written_bytes_per_1000"], row["flushes_per_1000"]) == (
        1.0,
        20_000,
        None,
    )
    assert row["p50_ms"] == pytest.approx(3.0, rel=0.01)


def test_shares_of_the_machine_add_up_and_the_disk_counts_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    servers = Usage(2.0, 1.0, 0, 0, disk_s=4.5, idle_s=3.0, whole_s=10.0)
    found = shares(servers, Usage(1.5, 0.5, 0, 0))
    assert found == {
        "servers_program": 0.2,
        "servers_kernel": 0.1,
        "clients": 0.2,
        "idle": 0.3,
        "others": 0.2,
        "disk": 0.9,
    }
    assert shares(Usage(0, 0, 0, -1), Usage(0, 0, 0, -1)) == {}
    told = _told({"antiphon": [100]})
    told["rows"]["put/1"]["peers"]["antiphon"][0]["shares"] = found
    assert "| put/1 | Antiphon | 20 | 10 | 20 | 20 | 30 | 90 |" in report.markdown(told, OURS)


def test_the_machine_is_counted(tmp_path: Path) -> None:
    before = Usage.of([os.getpid()], tmp_path)
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    used = Usage.of([os.getpid()], tmp_path) - before
    assert 0.2 <= used.cpu_s <= used.whole_s - used.idle_s + 0.1
    assert used.idle_s >= 0


def test_rows_are_chosen_by_patterns_and_the_usual_ones_without() -> None:
    assert [row.name for row in chosen("put/*,get/1")] == ["put/1", "put/64", "put/1000", "get/1"]
    usual = {row.name for row in chosen(None)}
    assert {"produce/1KB/131KB/3p/none", "put/1000", "consume-disk/1KB/1p"} <= usual
    assert "produce/10KB/1MB/48p/zstd" in set(ROWS) - usual


@pytest.mark.parametrize(
    "peer", [one for one in PEERS.values() if isinstance(one, GoPeer)], ids=lambda one: one.name
)
def test_peers_in_go_are_pinned_with_hashes(peer: GoPeer) -> None:
    sums = (MODULES / peer.name / "go.sum").read_text()
    assert f"{peer.module} {peer.version()} h1:" in sums


def test_values_of_a_batch_are_all_different() -> None:
    for size in (100, 10_000):
        values = random_values(size)
        assert {len(value) for value in values} == {size}
        assert len(set(values)) == len(values)
        assert len(values) * size > 4 * 1_000_000  # bytes of the largest batch
