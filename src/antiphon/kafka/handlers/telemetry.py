"""GetTelemetrySubscriptions and PushTelemetry: clients are told which of their metrics are wanted, and push them (KIP-714).

A node keeps what each client pushed last (`kafka.client_metrics.clients`). What is pushed is unpacked and read beside the
event loop, one push at a time. Of a push that is refused nothing is kept.
"""

from base64 import urlsafe_b64encode
from importlib.util import find_spec
from typing import Final

from antiphon import system
from antiphon.coordination.client_metrics import TEXT_CHARACTERS_MAX
from antiphon.errors import CorruptBatchError, DecompressedTooLargeError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.client_metrics.clients import Client, Clients, Subscribed
from antiphon.kafka.client_metrics.exposition import Kept, Room, kept_of
from antiphon.kafka.client_metrics.otlp import (
    LABEL_CHARACTERS_MAX,
    MalformedError,
    TooLargeError,
    points_of,
)
from antiphon.kafka.messages import telemetry as m
from antiphon.kafka.one_thread import OneThread
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.records.batch import CODEC_NAMES
from antiphon.records.compression import GZIP, decompress

PUSH_BYTES_MAX: Final = 1024 * 1024  # as it is sent; Kafka's telemetry.max.bytes
UNPACKED_BYTES_MAX: Final = 4 * 1024 * 1024
NOT_COMPRESSED: Final = 0
PREFERRED_CODECS: Final = ("zstd", "lz4", "gzip", "snappy")  # Kafka's order
UNKNOWN: Final = "unknown"
NAMING: Final = ("client_id", "client_instance_id")  # attributes of a client that are labels of its figures


class TelemetryHandler:
    """See the module's text. `clients`: those that have asked or pushed, with what is kept of them."""

    def __init__(self, gateway: Gateway, aside: OneThread) -> None:
        self.clients = Clients(lambda: gateway.subscriptions)
        self._aside = aside
        numbers = [CODEC_NAMES.index(name) for name in PREFERRED_CODECS]
        has_library = find_spec("pyarrow") is not None
        self._codecs = [number for number in numbers if has_library or number <= GZIP]

    async def subscriptions(
        self, request: m.GetTelemetrySubscriptionsRequest, context: RequestContext
    ) -> m.GetTelemetrySubscriptionsResponse:
        """What is wanted of the client. One that has no id yet is given one."""
        known = request.client_instance_id
        instance = known if known != ZERO_UUID else system.rng().randbytes(16)
        now_s = system.monotonic_s()
        client = self._client(instance, context, now_s)
        error = code.NONE
        subscribed = client.subscribed
        if client.may_ask(now_s):
            client.error = code.NONE
        else:
            error, subscribed = code.THROTTLING_QUOTA_EXCEEDED, Subscribed((), 0, 0)
        return m.GetTelemetrySubscriptionsResponse(
            error_code=error,
            client_instance_id=instance,
            subscription_id=subscribed.subscription_id,
            accepted_compression_types=self._codecs,
            push_interval_ms=subscribed.interval_ms,
            telemetry_max_bytes=PUSH_BYTES_MAX,
            requested_metrics=list(subscribed.metrics),
        )

    async def push(self, request: m.PushTelemetryRequest, context: RequestContext) -> m.PushTelemetryResponse:
        """Keep what a client pushes, in place of what it pushed before."""
        if request.client_instance_id == ZERO_UUID:
            return m.PushTelemetryResponse(error_code=code.INVALID_REQUEST)
        now_s = system.monotonic_s()
        client = self._client(request.client_instance_id, context, now_s)
        error = self._problem(client, request, now_s) or await self._take(client, request, context.client)
        client.error = error
        if error:
            self.clients.refusals += 1
        elif request.terminating:
            client.is_terminating = True
            self.clients.forget(client)
        return m.PushTelemetryResponse(error_code=error)

    def _client(self, instance: bytes, context: RequestContext, now_s: float) -> Client:
        text = instance_text(instance)
        software = context.software
        attributes = {
            "client_instance_id": text,
            "client_id": context.client_id[: TEXT_CHARACTERS_MAX + 1],  # of a longer one nothing is matched
            "client_software_name": UNKNOWN if software is None else software.name,
            "client_software_version": UNKNOWN if software is None else software.version,
            "client_source_address": context.client_host,
            "client_source_port": str(context.client_port),
        }
        return self.clients.client(text, context.client_host, attributes, now_s)

    def _problem(self, client: Client, request: m.PushTelemetryRequest, now_s: float) -> int:
        """Why a push is refused before it is looked into, in Kafka's order."""
        if client.is_terminating:
            return code.INVALID_REQUEST
        if not client.may_push(now_s) and not request.terminating:
            return code.THROTTLING_QUOTA_EXCEEDED
        if request.subscription_id != client.subscribed.subscription_id:
            return code.UNKNOWN_SUBSCRIPTION_ID
        if request.compression_type not in {NOT_COMPRESSED, *self._codecs}:
            return code.UNSUPPORTED_COMPRESSION_TYPE
        return code.TELEMETRY_TOO_LARGE if len(request.metrics) > PUSH_BYTES_MAX else code.NONE

    async def _take(self, client: Client, request: m.PushTelemetryRequest, sender: object) -> int:
        if not client.subscribed.metrics:
            return code.NONE  # nothing is wanted
        try:
            kept = await self._aside.run(
                read_push,
                request.compression_type,
                request.metrics,
                client.subscribed,
                self.clients.room(client),
                {name: client.attributes[name][:LABEL_CHARACTERS_MAX] for name in NAMING},
                client=sender,
            )
        except (DecompressedTooLargeError, TooLargeError):
            return code.TELEMETRY_TOO_LARGE
        except (CorruptBatchError, MalformedError):
            return code.INVALID_RECORD
        self.clients.pushes += 1
        self.clients.keep(client, kept)
        return code.NONE


def instance_text(instance: bytes) -> str:
    """A client's id as Kafka writes it."""
    return urlsafe_b64encode(instance).decode().rstrip("=")


def read_push(codec: int, data: bytes, subscribed: Subscribed, room: Room, client: dict[str, str]) -> Kept:
    """What a push says, as far as it is wanted and there is room for it. Raises what its parts do."""
    plain = bytes(decompress(codec, data, UNPACKED_BYTES_MAX))
    return kept_of(points_of(plain, subscribed.wants), client, room)
