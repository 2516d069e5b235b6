"""Metrics that Kafka's clients push: what is read of them is shown to Prometheus, which can read it."""

from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from antiphon.errors import CorruptBatchError
from antiphon.kafka.client_metrics.clients import Subscribed
from antiphon.kafka.client_metrics.exposition import Room, rendered
from antiphon.kafka.client_metrics.otlp import MalformedError, TooLargeError
from antiphon.kafka.handlers.telemetry import read_push
from antiphon.records.compression import compress
from tests.fuzz.target import Target, check
from tests.kafka.pushed import data_of, gauge, number, total, usual

ALL: Final = Subscribed(("*",), 1_000, 0)
ROOM: Final = Room(1_000, 16 * 1024)
CLIENT: Final = {"client_id": "c", "client_instance_id": "i"}


class PushedMetrics(Target):
    """A push: the first byte is the codec, modulo 5."""

    slow_s = 1.0

    def seeds(self) -> list[bytes]:
        plain = [
            usual(),
            data_of(
                gauge("a.b", number(1, x="\n"), number(2.5, y=True)), total("c", number(-1)), group_id="g"
            ),
            b"\x0a\x80\x80\x80\x04" + bytes(64),
        ]
        return [bytes([codec]) + compress(codec, data) for data in plain for codec in range(5)]

    def run(self, data: bytes) -> None:
        try:
            kept = read_push(data[0] % 5 if data else 0, data[1:], ALL, ROOM, CLIENT)
        except (CorruptBatchError, MalformedError, TooLargeError):
            return
        check(kept.points <= ROOM.points, "more is kept than there is room for")
        size_bytes = sum(map(len, kept.families.values()))
        check(size_bytes <= kept.size_bytes <= ROOM.size_bytes, "lines take more than there is room for")
        found = text_string_to_metric_families(rendered([kept.families]).decode())
        samples = [sample for family in found for sample in family.samples]
        check(len(samples) <= kept.points, "a figure is shown twice")
        check(bool(samples) == bool(kept.points), "a figure is not shown")
