"""Metrics as clients push them, made with OpenTelemetry's own messages."""

from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

CONNECTIONS = "org.apache.kafka.producer.connection.creation.total"
LATENCY = "org.apache.kafka.producer.node.request.latency.avg"


def attributes(**values: Any) -> list[KeyValue]:
    made = []
    for name, value in values.items():
        kind = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}[type(value)]
        made.append(KeyValue(key=name, value=AnyValue(**{kind: value})))
    return made


def number(value: float, **labels: Any) -> NumberDataPoint:
    which = {"as_int": value} if isinstance(value, int) else {"as_double": value}
    return NumberDataPoint(attributes=attributes(**labels), time_unix_nano=2, start_time_unix_nano=1, **which)


def gauge(name: str, *points: NumberDataPoint) -> Metric:
    return Metric(name=name, unit="1", description="what it is", gauge=Gauge(data_points=points))


def total(name: str, *points: NumberDataPoint) -> Metric:
    cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    made = Sum(data_points=points, is_monotonic=True, aggregation_temporality=cumulative)
    return Metric(name=name, sum=made)


def histogram(name: str) -> Metric:
    return Metric(name=name, histogram=Histogram(data_points=[HistogramDataPoint(count=3, sum=1.0)]))


def data_of(*metrics: Metric, **resource: Any) -> bytes:
    scope = ScopeMetrics(metrics=metrics)
    of = ResourceMetrics(resource=Resource(attributes=attributes(**resource)), scope_metrics=[scope])
    made: bytes = MetricsData(resource_metrics=[of]).SerializeToString()
    return made


def usual(connections: int = 3) -> bytes:
    """What a small client pushes."""
    return data_of(
        total(CONNECTIONS, number(connections)), gauge(LATENCY, number(1.5, node_id=1)), client_rack="r1"
    )
