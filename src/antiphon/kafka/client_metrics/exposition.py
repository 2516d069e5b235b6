"""Clients' metrics in Prometheus's text format: a gauge for each name, labelled with the client that told it."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from antiphon.kafka.client_metrics.otlp import Point

OF_KAFKA: Final = "org_apache_kafka_"
OTHERS: Final = "kafka_client_"  # in front of other names, so that none can be that of a node's own metric
_NOT_OF_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Families = dict[str, bytes]
"""The lines of one client, by the metric's name."""


class Room(NamedTuple):
    """What may be kept: so many figures, and so many bytes of their lines."""

    points: int
    size_bytes: int


class Kept(NamedTuple):
    """What is kept of a push: how many figures, bytes of their lines, the lines; and how many figures are left out."""

    points: int
    size_bytes: int
    families: Families
    left_out: int


NOTHING: Final = Kept(0, 0, {}, 0)


def kept_of(points: Iterable[Point], client: Mapping[str, str], room: Room) -> Kept:
    """The lines of one client's figures, as far as there is room.

    Where two figures have the same name and labels by Prometheus' rules, the last one counts. `client` is what names the
    client, which goes before labels of the same name.
    """
    series: dict[str, dict[str, bytes]] = {}
    count = size_bytes = left_out = 0
    for point in points:
        if count >= room.points or left_out >= room.points:  # of many that have no room each costs little
            left_out += 1
            continue
        name = family_of(point.name)
        labels = {_label(label): value for label, value in point.labels}
        labels = {label: value for label, value in labels.items() if not label.startswith("__")}
        labels.update(client)
        text = ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in sorted(labels.items()))
        line = f"{name}{{{text}}} {_number(point.value)}\n".encode()
        if size_bytes + len(line) > room.size_bytes:
            left_out += 1
            continue
        count, size_bytes = count + 1, size_bytes + len(line)
        series.setdefault(name, {})[text] = line
    families = {name: b"".join(lines.values()) for name, lines in series.items()}
    return Kept(count, size_bytes, families, left_out)


def family_of(name: str) -> str:
    """A metric's name by Prometheus' rules."""
    found = _NOT_OF_NAMES.sub("_", name)
    return found if found.startswith(OF_KAFKA) else OTHERS + found


def rendered(clients: Iterable[Families]) -> bytes:
    """Everything that clients told, each name once."""
    by_name: dict[str, list[bytes]] = {}
    for families in clients:
        for name, lines in families.items():
            by_name.setdefault(name, []).append(lines)
    parts: list[bytes] = []
    for name in sorted(by_name):
        parts.append(f"# HELP {name} Pushed by Kafka clients\n# TYPE {name} gauge\n".encode())
        parts += by_name[name]
    return b"".join(parts)


def _label(name: str) -> str:
    found = _NOT_OF_NAMES.sub("_", name)
    return "_" + found if found[:1].isdigit() else found


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
