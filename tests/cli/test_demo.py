"""The demo: its data, its arithmetic, and a small run of all of it."""

import json
import os
import subprocess
import sys
from array import array
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from antiphon.lake.mirror import MirrorProgress
from antiphon.records.builder import build_batch
from antiphon.tools.demo.data import AircraftState, FlightEvent, load_flights
from antiphon.tools.demo.lake import Epoch, Lake, delays_ms
from antiphon.tools.demo.replicas import digest, identical
from antiphon.tools.demo.report import lake_curve, longest_gap_ms
from tests.spark.quick_java import QUICK_START

SECOND_NS = 1_000_000_000


def test_every_flight_is_an_event_with_a_key() -> None:
    flights = load_flights()
    assert len(flights) == 336_776
    assert sum(flight.key.startswith(b"unknown-") for flight in flights) == 2_512
    first = msgspec.json.decode(flights[0].event, type=FlightEvent)
    assert (first.id, first.scheduled, first.tail) == (0, "2013-01-01T05:15", "N14228")
    last = msgspec.json.decode(flights[-1].event, type=FlightEvent)
    assert last.scheduled.startswith("2013-12-31T23")
    state = msgspec.json.decode(flights[-1].state, type=AircraftState)
    assert (state.last_id, state.scheduled) == (336_775, last.scheduled)
    times = [flight.event.partition(b'"scheduled":"')[2][:16] for flight in flights]
    assert all(a <= b for a, b in pairwise(times))


def test_a_cancelled_flight_leaves_the_aircraft_where_it_is() -> None:
    for flight in load_flights(5_000):
        event = msgspec.json.decode(flight.event, type=FlightEvent)
        state = msgspec.json.decode(flight.state, type=AircraftState)
        assert state.cancelled == (event.dep_delay is None)
        assert state.airport == (event.origin if state.cancelled else event.dest)


def test_the_gap_is_the_longest_one_around_the_kill_in_one_shard() -> None:
    times = array("q", [0, 1, 2, 5, 6, 7, 9, 100, 200])
    shards = array("b", [0, 1, 0, 1, 0, 1, 0, 0, 1])
    ns = array("q", [time * SECOND_NS for time in times])
    # Shard 0: 0 2 6 9 100; shard 1: 1 5 7 200. The gaps that begin long after the kill are not the kill's.
    assert longest_gap_ms(ns[:7], shards[:7], 3 * SECOND_NS, (0,)) == 4_000
    assert longest_gap_ms(ns[:7], shards[:7], 3 * SECOND_NS, (1,)) == 4_000
    assert longest_gap_ms(ns[:7], shards[:7], 3 * SECOND_NS, None) == 3_000
    assert longest_gap_ms(ns, shards, 3 * SECOND_NS, (2,)) == 0


def test_the_way_to_the_lake_is_timed_per_event() -> None:
    arrivals = pa.table(
        {"partition": [0, 0, 1], "offset": [1, 5, 1], "us": [1_000_000, 2_000_000, 3_000_000]}
    )
    epochs = [Epoch(4_000, 1, {}, {0: 3, 1: 1}), Epoch(9_000, 2, {0: 3, 1: 1}, {0: 6, 1: 2})]
    assert list(delays_ms(arrivals, epochs)) == [3_000, 7_000, 6_000]
    assert lake_curve(epochs) == ([4_000, 9_000], [1, 3])


def test_what_an_epoch_of_the_mirror_brought(tmp_path: Path) -> None:
    lake = Lake(None, "", tmp_path)
    progress = MirrorProgress(rows=3, positions={0: 3})
    lake._arrived(progress)
    lake._arrived(progress)  # an epoch of records that are none of events
    progress.rows, progress.positions = 5, {0: 4, 1: 1}
    lake._arrived(progress)
    assert [epoch[1:] for epoch in lake.epochs] == [(3, {}, {0: 3}), (2, {0: 3}, {0: 4, 1: 1})]
    assert 0 < lake.epochs[0].committed_ms <= lake.epochs[1].committed_ms


def test_replicas_are_compared_by_their_batches(tmp_path: Path) -> None:
    batches = [bytes(build_batch([(None, b"%d" % n, (), n)], base_offset=n)) for n in range(4)]
    for node, cut in enumerate((1, 3, 4)):  # segments may be cut at different places
        folder = tmp_path / f"node-{node}" / "data" / "shards" / "7"
        folder.mkdir(parents=True)
        (folder / f"{0:020}.log").write_bytes(b"".join(batches[:cut]))
        (folder / f"{cut:020}.log").write_bytes(b"".join(batches[cut:]))
    nodes = sorted(tmp_path.iterdir())
    assert digest(sorted(nodes[0].glob("**/*.log")))[1:] == (4, 4)
    assert identical(nodes, [("flights", 0, 7)]).holds
    (tmp_path / "node-1" / "data" / "shards" / "7" / f"{3:020}.log").write_bytes(b"")
    proof = identical(nodes, [("flights", 0, 7)])
    assert not proof.holds
    assert "flights/0" in proof.found
    assert not identical(nodes, [("flights", 1, 8)]).holds  # nothing there is no agreement


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.driver
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_small_demo_proves_everything(tmp_path: Path, warm_python: dict[str, str]) -> None:
    plot = tmp_path / "demo.png"
    command = (
        sys.executable, "-m", "antiphon.cli.main",
        "demo", "--events", "3000", "--rate", "1000", "--json", "--plot", str(plot),
    )  # fmt: skip
    quick_start = {"JDK_JAVA_OPTIONS": QUICK_START}
    ran = subprocess.run(
        command,
        env=os.environ | quick_start | warm_python,
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert figures["ok"]
    assert len(figures["proofs"]) == 5
    assert figures["events"] == 3000
    assert 0 < figures["failover_gap_ms"] < 60_000
    assert plot.read_bytes().startswith(b"\x89PNG")
