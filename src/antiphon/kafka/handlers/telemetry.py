"""GetTelemetrySubscriptions and PushTelemetry: no metrics of clients are wanted, and none are kept.

A client that asks gets an id and an empty subscription, and asks again after `PUSH_INTERVAL_MS`. What it pushes all the same
is measured by that subscription and dropped.
"""

from typing import Final

from antiphon import system
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.messages import telemetry as m
from antiphon.kafka.primitives import ZERO_UUID

PUSH_INTERVAL_MS: Final = 300_000
METRICS_BYTES_MAX: Final = 64 * 1024
SUBSCRIPTION: Final = 0  # the empty one
NOT_COMPRESSED: Final = 0


class TelemetryHandler:
    """Keeps nothing."""

    async def subscriptions(
        self, request: m.GetTelemetrySubscriptionsRequest, _: RequestContext
    ) -> m.GetTelemetrySubscriptionsResponse:
        """Nothing is subscribed to."""
        known = request.client_instance_id
        return m.GetTelemetrySubscriptionsResponse(
            client_instance_id=known if known != ZERO_UUID else system.rng().randbytes(16),
            subscription_id=SUBSCRIPTION,
            push_interval_ms=PUSH_INTERVAL_MS,
            telemetry_max_bytes=METRICS_BYTES_MAX,
        )

    async def push(self, request: m.PushTelemetryRequest, _: RequestContext) -> m.PushTelemetryResponse:
        """Drop it."""
        error = code.NONE
        if request.client_instance_id == ZERO_UUID:
            error = code.INVALID_REQUEST
        elif request.subscription_id != SUBSCRIPTION:
            error = code.UNKNOWN_SUBSCRIPTION_ID
        elif len(request.metrics) > METRICS_BYTES_MAX:
            error = code.TELEMETRY_TOO_LARGE
        elif request.compression_type != NOT_COMPRESSED:
            error = code.UNSUPPORTED_COMPRESSION_TYPE
        return m.PushTelemetryResponse(error_code=error)
