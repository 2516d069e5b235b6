"""GetTelemetrySubscriptions and PushTelemetry (KIP-714)."""

from antiphon.kafka.messages.shared import ErrorResponse
from antiphon.kafka.schema import I8, I32, Message, Uuid


class GetTelemetrySubscriptionsRequest(Message, kw_only=True):
    """A client asks which of its metrics are wanted; an id of zeros: it has none yet."""

    client_instance_id: Uuid


class GetTelemetrySubscriptionsResponse(ErrorResponse, kw_only=True):
    """What is wanted, and how often. No metrics: none."""

    client_instance_id: Uuid
    subscription_id: I32 = 0
    accepted_compression_types: list[I8] = []
    push_interval_ms: I32 = 0
    telemetry_max_bytes: I32 = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = []


class PushTelemetryRequest(Message, kw_only=True):
    """A client's metrics."""

    client_instance_id: Uuid
    subscription_id: I32
    terminating: bool
    compression_type: I8
    metrics: bytes


class PushTelemetryResponse(ErrorResponse, kw_only=True):
    """Were they taken?"""
