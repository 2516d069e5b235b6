"""The soak: its judges and slopes find what they are for, and a short run of all of it passes its judge."""

from pathlib import Path

import pytest

from tests.soak.figures import Latencies, ProcessSeries, slope, trend, trends
from tests.soak.kafka_load import KafkaLoad
from tests.soak.ledger import Follower, Ledger, ShardJudge, Told, judge_rows, parse, value_of
from tests.soak.load import KAFKA
from tests.soak.oxia_load import Notified
from tests.soak.run import JUDGED_KINDS, soak

HOUR_S = 3600.0


def told(*pairs: tuple[int, int]) -> Told:
    one = Told()
    for number, offset in pairs:
        one.numbers.append(number)
        one.offsets.append(offset)
    return one


def judged(acknowledged: Told, log: list[tuple[int, bytes]], log_start: int = 0) -> list[str]:
    judge = ShardJudge("t/0", {"w": acknowledged}, log_start)
    for offset, value in log:
        judge.take(offset, value)
    return judge.end()


def test_a_log_that_holds_what_was_acknowledged_is_fine() -> None:
    log = [(offset, value_of("w", number)) for offset, number in ((3, 0), (4, 1), (6, 2), (7, 3))]
    assert judged(told((0, 3), (1, 4), (3, 7)), log) == []  # the outcome of 2 is not known
    assert judged(told((0, 1), (3, 7)), log, log_start=3) == []  # retention has trimmed 1


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ([(3, 0), (4, 1)], "LOST: w 2"),  # at the end
        ([(3, 0), (5, 2)], "LOST: w 1"),  # in the middle
        ([(3, 0), (4, 1), (5, 2), (6, 1)], "stands behind"),  # repeated
        ([(3, 0), (4, 2), (5, 1)], "LOST: w 1"),  # swapped
    ],
)
def test_a_lost_repeated_or_swapped_record_is_found(log: list[tuple[int, int]], said: str) -> None:
    records = [(offset, value_of("w", number)) for offset, number in log]
    assert any(said in problem for problem in judged(told((0, 3), (1, 4), (2, 5)), records))


def test_a_record_that_nobody_wrote_is_found() -> None:
    assert "nobody wrote" in judged(told(), [(0, b"garbage")])[0]


def test_rows_and_changes_are_judged_by_their_numbers() -> None:
    ledger = Ledger()
    row = ledger.rows[b"k1"]
    row.sent, row.acknowledged, row.unknown = 6, 4, {2, 5}
    assert judge_rows(ledger, {b"k1": 4}) == []
    assert judge_rows(ledger, {b"k1": 5}) == []
    assert judge_rows(ledger, {b"k1": 3}) == ["b'k1' holds 3, acknowledged was 4"]
    assert judge_rows(ledger, {}) == ["b'k1' holds -1, acknowledged was 4"]
    follower = Follower(ledger)
    for number in (0, 1, 3):
        follower.take(b"k1", number)
    assert not ledger.problems
    assert not follower.complete()
    follower.take(b"k1", 3)
    assert "got 3 of b'k1' behind 3" in ledger.problems[0]
    follower.take(b"k1", 6)  # 4 was acknowledged and never came
    assert len(ledger.problems) == 2


def test_followers_are_told_every_version_once_and_in_order() -> None:
    said: list[str] = []
    one = Notified(said.append)
    for version in (3, 5, 8):
        one.put(b"k", version)
    one.take(b"k", 3)
    assert one.missing() == 2
    one.take(b"k", 4)  # one whose put had no answer
    one.take(b"k", 5)
    one.take(b"k", 8)
    assert (said, one.missing()) == ([], 0)
    one.take(b"k", 9)
    one.put(b"k", 9)  # its answer came behind the notification
    one.take(b"k", 10)
    one.put(b"k", 10)
    assert (said, one.missing()) == ([], 0)
    one.take(b"k", 10)
    assert "behind 10" in said[0]
    one.put(b"k", 11)
    one.take(b"k", 12)
    assert "not told version 11" in said[1]


def test_what_a_group_must_get_are_acknowledged_records_not_the_entries_of_elections() -> None:
    ledger = Ledger()
    load = KafkaLoad("", ledger, Latencies())
    for number, offset in ((0, 0), (1, 2), (2, 3)):  # at 1 an election
        ledger.acknowledged(KAFKA, 0, "kafka-0", number, offset)
    for offset in (0, 3):
        ledger.consumed_at(0, offset, b"value")
    assert load.missing() == ["partition 0: 1 records never came, the first at 2"]
    ledger.consumed_at(0, 2, b"value")
    assert load.missing() == []


def test_values_say_who_wrote_them() -> None:
    writer, number, written_ns = parse(value_of("w-1", 17))
    assert (writer, number) == ("w-1", 17)
    assert written_ns > 0
    with pytest.raises(ValueError, match="unpack"):
        parse(None)


def test_a_leak_is_a_slope_and_noise_is_not() -> None:
    at = [float(n * 30) for n in range(120)]
    noisy = [100.0 + (n * 7919 % 13) + (80.0 if n % 29 == 0 else 0.0) for n in range(120)]
    leaking = [one + at[n] / HOUR_S * 40 for n, one in enumerate(noisy)]
    assert abs(slope(at, noisy) * HOUR_S) < 2
    assert 35 < slope(at, leaking) * HOUR_S < 45
    assert trend("node 0", "resident_mib", at, noisy, HOUR_S).fine
    assert not trend("node 0", "resident_mib", at, leaking, HOUR_S).fine
    warming = [100.0 - 90.0 * max(0.0, 1 - n / 30) for n in range(120)]  # the first third is not judged
    assert trend("node 0", "resident_mib", at, warming, HOUR_S).fine


def test_descriptors_threads_and_latencies_are_judged_too() -> None:
    one = ProcessSeries()
    latencies = Latencies()
    for second in range(300):
        one.at_s.append(float(second))
        one.resident_mib.append(100.0)
        one.descriptors.append(80 + second // 10)
        one.threads.append(9)
        latencies.at_s["put"].append(second)
        latencies.took_s["put"].append(0.004 + second / 300 * 0.06)
    fine = {(t.what, t.figure): t.fine for t in trends({"node 0": one}, latencies, ["put"], 300.0)}
    assert fine == {
        ("node 0", "resident_mib"): True,
        ("node 0", "descriptors"): False,
        ("node 0", "threads"): True,
        ("put", "p50_ms"): False,
        ("put", "p99_ms"): True,  # 40 ms more are within the bound of 100
    }


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(150)
def test_a_short_soak_loses_nothing_and_reaches_every_listener(tmp_path: Path) -> None:
    said: list[str] = []
    result = soak(8.0, tmp_path, said.append)
    assert result["problems"] == []
    assert result["errors"] == {}
    assert set(result["latencies"]) == set(JUDGED_KINDS)
    assert result["connections"] > 50
    assert all(len(one["resident_mib"]) >= 5 for one in result["nodes"].values())
    assert (tmp_path / "soak.json").exists()
    assert (tmp_path / "soak.png").stat().st_size > 10_000
