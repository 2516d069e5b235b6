"""Clients' metrics in Prometheus's text format: a gauge for each name, labelled with the client that told it."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from antiphon.kafka.client_metrics.otlp import Point

OF_KAFKA: Final = "org_apache_kafka_"
OTHERS: Final = "kafka_client_"  # in front of other names, so that none can be that of a node's own metric
_NOT_OF_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Families = dict[str, str]
"""The lines of one client, by the metric's name."""


def families_of(points: Iterable[Point], client: Mapping[str, str]) -> Families:
    """The lines of one client's figures. Where two have the same name and labels by Prometheus' rules, the last one counts.

    `client` is what names it, which goes before labels of the same name.
    """
    series: dict[str, dict[str, str]] = {}
    for point in points:
        labels = {_label(name): value for name, value in point.labels}
        labels = {name: value for name, value in labels.items() if not name.startswith("__")}
        labels.update(client)
        text = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(labels.items()))
        series.setdefault(family_of(point.name), {})[text] = _number(point.value)
    return {
        name: "".join(f"{name}{{{labels}}} {value}\n" for labels, value in lines.items())
        for name, lines in series.items()
    }


def family_of(name: str) -> str:
    """A metric's name by Prometheus' rules."""
    found = _NOT_OF_NAMES.sub("_", name)
    return found if found.startswith(OF_KAFKA) else OTHERS + found


def rendered(clients: Iterable[Families]) -> bytes:
    """Everything that clients told, each name once."""
    by_name: dict[str, list[str]] = {}
    for families in clients:
        for name, lines in families.items():
            by_name.setdefault(name, []).append(lines)
    parts = []
    for name in sorted(by_name):
        parts.append(f"# HELP {name} Pushed by Kafka clients\n# TYPE {name} gauge\n")
        parts += by_name[name]
    return "".join(parts).encode()


def _label(name: str) -> str:
    found = _NOT_OF_NAMES.sub("_", name)
    return "_" + found if found[:1].isdigit() else found


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
