"""What is read of metrics that clients push, against OpenTelemetry's own messages, and how Prometheus is shown it."""

import math
from random import Random
from unittest.mock import patch

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.gateway.protobuf import REST_MESSAGES
from antiphon.kafka.client_metrics.clients import KEPT_BYTES_MAX, POINTS_MAX, Clients
from antiphon.kafka.client_metrics.exposition import Room, family_of, kept_of, rendered
from antiphon.kafka.client_metrics.otlp import (
    FIELDS_MAX,
    LABEL_CHARACTERS_MAX,
    LABELS_MAX,
    NAME_CHARACTERS_MAX,
    MalformedError,
    Point,
    TooLargeError,
    points_of,
)
from antiphon.kafka.one_thread import PIECE
from antiphon.model.client_metrics import Subscription
from tests.kafka.pushed import CONNECTIONS, LATENCY, data_of, gauge, histogram, number, total, usual

NAMED = {"client_id": "c", "client_instance_id": "i"}
ROOM = Room(100_000, 1 << 30)


def all_of(data: bytes) -> list[Point]:
    return list(points_of(data, lambda _: True))


def test_gauges_and_sums_are_read_with_their_labels() -> None:
    points = (number(-7, topic="t", partition=3), number(0.25, is_up=True, share=0.5), number(0))
    data = data_of(gauge("g", *points), histogram("h"), total("s", number(1 << 40)), group_id="readers")
    own = ("group_id", "readers")
    assert all_of(data) == [
        Point("g", (own, ("partition", "3"), ("topic", "t")), -7.0),
        Point("g", (own, ("is_up", "true"), ("share", "0.5")), 0.25),
        Point("g", (own,), 0.0),
        Point("s", (own,), float(1 << 40)),
    ]
    assert [one.name for one in points_of(usual(), lambda name: name == LATENCY)] == [LATENCY]
    assert all_of(b"") == []
    assert all_of(
        data_of(
            gauge(
                "g",
                number(1, topic="t"),
            ),
            topic="own",
        )
    ) == [Point("g", (("topic", "t"),), 1.0)]


def test_names_and_labels_are_bounded() -> None:
    assert all_of(data_of(gauge("n" * (NAME_CHARACTERS_MAX + 1), number(1)), gauge("", number(1)))) == []
    (point,) = all_of(data_of(gauge("n", number(1, **{f"k{at}": "v" * 999 for at in range(99)}))))
    assert len(point.labels) == LABELS_MAX
    assert {len(value) for _, value in point.labels} == {LABEL_CHARACTERS_MAX}
    many = {f"k{at:02}": 1 for at in reversed(range(99))} | {"l" * (LABEL_CHARACTERS_MAX + 1): 1}
    (point,) = all_of(data_of(gauge("n", number(1)), **many))
    assert [name for name, _ in point.labels] == [f"k{at}" for at in range(99 - LABELS_MAX, 99)]
    (point,) = all_of(data_of(gauge("n", number(1, **{"l" * (LABEL_CHARACTERS_MAX + 1): 1}))))
    assert point.labels == ()


def test_what_has_too_many_fields_is_told_from_what_is_malformed() -> None:
    whole = usual()
    unknown = b"\x78\x01"
    inside = data_of(gauge("g", *[number(1)] * (FIELDS_MAX // 10)))
    for data in (
        unknown * (FIELDS_MAX + 1),
        data_of(gauge("g", *[number(1)] * (FIELDS_MAX // 4))),
        unknown * (FIELDS_MAX - 1) + inside,
    ):
        with pytest.raises(TooLargeError):
            all_of(data)
    for end in range(len(whole)):
        try:
            all_of(whole[:end])
        except MalformedError:
            continue
        assert end == 0, "an end that is missing is not passed over"


def test_garbage_is_refused_or_read_and_nothing_else() -> None:
    draw, whole = Random(7), usual()
    for _ in range(3_000):
        data = bytearray(whole if draw.random() < 0.7 else draw.randbytes(draw.randint(1, 64)))
        for _ in range(draw.randint(0, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            points = all_of(bytes(data))
        except (MalformedError, TooLargeError):
            continue
        list(text_string_to_metric_families(rendered([kept_of(points, NAMED, ROOM).families]).decode()))


def test_prometheus_reads_what_it_is_shown() -> None:
    points = [
        Point(CONNECTIONS, (("client.id", "other"), ("9lives", 'a"\\\n'), ("__name__", "x")), 1.5),
        Point("com.acme-büro", (), math.inf),
        Point("org.apache.kafka.a_b", (("topic", "t"),), 1.0),
        Point("org.apache.kafka.a.b", (("topic", "t"),), math.nan),
    ]
    first = kept_of(points, NAMED, ROOM).families
    second = kept_of(points[:1], {"client_id": "d", "client_instance_id": "j"}, ROOM).families
    text = rendered([first, second]).decode()
    found = {one.name: one for one in text_string_to_metric_families(text)}
    assert list(found) == [
        "kafka_client_com_acme_b_ro",
        "org_apache_kafka_a_b",
        "org_apache_kafka_producer_connection_creation_total",
    ]
    assert {one.type for one in found.values()} == {"gauge"}
    labels = [one.labels for one in found["org_apache_kafka_producer_connection_creation_total"].samples]
    assert labels == [
        {**NAMED, "_9lives": 'a"\\\n'},
        {"client_id": "d", "client_instance_id": "j", "_9lives": 'a"\\\n'},
    ]
    (both,) = found["org_apache_kafka_a_b"].samples
    assert math.isnan(both.value), "of two that are one by Prometheus' rules the last one counts"
    assert found["kafka_client_com_acme_b_ro"].samples[0].value == math.inf


@pytest.mark.parametrize("name", ["antiphon_leaders", "process_cpu_seconds", "1", "python.info"])
def test_no_client_takes_the_name_of_a_nodes_own_metric(name: str) -> None:
    assert family_of(name).startswith("kafka_client_")


def test_a_large_push_leaves_the_interpreter_to_others_now_and_then() -> None:
    data = data_of(gauge("g", *[number(1)] * 2_000))
    with patch("antiphon.kafka.client_metrics.otlp.pause") as rests:
        found = points_of(data, lambda _: True)
        assert rests.call_count >= 2_000 // REST_MESSAGES
        read = rests.call_count
        assert len(list(found)) == 2_000
        assert rests.call_count - read == 2_000 // PIECE


def test_what_is_kept_is_bounded_by_its_bytes_too() -> None:
    """Labels of a push's resource are those of each of its figures: a kilobyte can be made a megabyte."""
    labels = tuple((f"label-{at:02}" + "x" * 240, "ß" * 256) for at in range(14))
    points = [Point(f"a.{at}", labels, 1.0) for at in range(100)]
    kept = kept_of(points, NAMED, Room(1_000, 64 * 1024))
    size_bytes = sum(map(len, kept.families.values()))
    assert kept.size_bytes == size_bytes <= 64 * 1024
    assert kept.points == len(kept.families) == size_bytes // (size_bytes // kept.points) < 10
    assert kept.points + kept.left_out == 100
    small = kept_of([*points, Point("b", (), 1.0)], NAMED, Room(1_000, 64 * 1024))
    assert "kafka_client_b" in small.families, "what is small has room after what has none"


def test_pushes_that_are_read_at_the_same_time_share_the_room() -> None:
    clients = Clients(lambda: {"s": Subscription("s", {"metrics": "*"})})
    pushers = [clients.client(f"{at}", "h", {}, 0.0) for at in range(30)]
    rooms = [clients.room(client) for client in pushers]  # each as if it were alone
    points = [Point("a", (("x", f"{at}" + "y" * 250),), 1.0) for at in range(1_000)]
    for client, room in zip(pushers, rooms, strict=True):
        clients.keep(client, kept_of(points, NAMED, room))
    assert clients.point_count <= POINTS_MAX
    assert 0 < clients.kept_bytes <= KEPT_BYTES_MAX
    assert clients.left_out == 30_000 - clients.point_count
