"""Metrics as clients push them: OpenTelemetry's MetricsData, of which the gauges and sums are read.

Kafka's clients push nothing else. The other kinds of metrics, exemplars and times are passed over. Only the fields listed
here are read, and none of them holds a message of its own kind, so nesting has no depth that a client could choose.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from antiphon.gateway.protobuf import BadMessageError, Field, Kind, Message, TooManyFieldsError, decode
from antiphon.kafka.one_thread import PIECE, pause

FIELDS_MAX: Final = 100_000  # of one push, with those that nobody knows: about 50 ms and 20 MB
NAME_CHARACTERS_MAX: Final = 256  # a longer name is left out
LABELS_MAX: Final = 16  # of one point, its client's among them
LABEL_CHARACTERS_MAX: Final = 256

Labels = tuple[tuple[str, str], ...]


class MalformedError(Exception):
    """These bytes are no MetricsData."""


class TooLargeError(Exception):
    """There is more in it than is read."""


class Point(NamedTuple):
    """A figure: the metric's name as the client has it, labels in the order of their names, the value."""

    name: str
    labels: Labels
    value: float


class _Value(Message):
    FIELDS = (
        Field(1, "text", Kind.TEXT, optional=True),
        Field(2, "flag", Kind.BOOL, optional=True),
        Field(3, "number", Kind.INT, optional=True),
        Field(4, "fraction", Kind.DOUBLE, optional=True),
    )


class _Attribute(Message):
    FIELDS = (Field(1, "key", Kind.TEXT), Field(2, "value", Kind.MESSAGE, _Value))


class _Number(Message):
    FIELDS = (
        Field(4, "fraction", Kind.DOUBLE, optional=True),
        Field(6, "number", Kind.SFIXED64, optional=True),
        Field(7, "attributes", Kind.MESSAGE, _Attribute, many=True),
    )


class _Numbers(Message):
    """A gauge, or a sum."""

    FIELDS = (Field(1, "points", Kind.MESSAGE, _Number, many=True),)


class _Metric(Message):
    FIELDS = (
        Field(1, "name", Kind.TEXT),
        Field(5, "gauge", Kind.MESSAGE, _Numbers),
        Field(7, "sum", Kind.MESSAGE, _Numbers),
    )


class _Scope(Message):
    FIELDS = (Field(2, "metrics", Kind.MESSAGE, _Metric, many=True),)


class _Resource(Message):
    FIELDS = (Field(1, "attributes", Kind.MESSAGE, _Attribute, many=True),)


class _OfResource(Message):
    FIELDS = (
        Field(1, "resource", Kind.MESSAGE, _Resource),
        Field(2, "scopes", Kind.MESSAGE, _Scope, many=True),
    )


class MetricsData(Message):
    """The whole of it."""

    FIELDS = (Field(1, "resources", Kind.MESSAGE, _OfResource, many=True),)


def points_of(data: bytes, is_wanted: Callable[[str], bool]) -> Iterator[Point]:
    """The figures of MetricsData whose names are wanted. All of it is read before there is a first one, so that errors come
    before that: raises MalformedError, TooLargeError.
    """
    try:
        whole = decode(MetricsData, data, fields_max=FIELDS_MAX, rest=pause)
    except TooManyFieldsError as error:
        raise TooLargeError(str(error)) from error
    except BadMessageError as error:
        raise MalformedError(str(error)) from error
    return _points(whole, is_wanted)


def _points(whole: Any, is_wanted: Callable[[str], bool]) -> Iterator[Point]:
    count = 0
    for of in whole.resources:
        own = {} if of.resource is None else _labels(of.resource.attributes)
        for scope in of.scopes:
            for metric in scope.metrics:
                if not 0 < len(metric.name) <= NAME_CHARACTERS_MAX or not is_wanted(metric.name):
                    continue
                for numbers in (metric.gauge, metric.sum):
                    for number in () if numbers is None else numbers.points:
                        value = number.fraction if number.number is None else number.number
                        if value is None:
                            continue
                        count += 1
                        if not count % PIECE:
                            pause()
                        yield Point(metric.name, _all_labels(own, number), float(value))


def _all_labels(own: dict[str, str], number: Any) -> Labels:
    labels = {**own, **_labels(number.attributes)} if number.attributes else own
    return tuple(sorted(labels.items())[:LABELS_MAX])


def _labels(attributes: Any) -> dict[str, str]:
    """Attributes whose values are no lists; long texts are cut."""
    found: dict[str, str] = {}
    for attribute in attributes:
        value, key = attribute.value, attribute.key
        if value is None or not 0 < len(key) <= LABEL_CHARACTERS_MAX or len(found) >= LABELS_MAX:
            continue
        for one in (value.text, value.number, value.fraction, value.flag):
            if one is not None:
                text = str(one).lower() if isinstance(one, bool) else str(one)
                found[key] = text[:LABEL_CHARACTERS_MAX]
                break
    return found
