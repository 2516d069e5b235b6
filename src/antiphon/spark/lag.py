"""`antiphon.spark.watch(spark)`: lag and progress of a session's streaming queries at an address that Prometheus scrapes."""

import contextlib
import ipaddress
import json
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from prometheus_client import CollectorRegistry, start_http_server
from pyspark.sql.streaming import StreamingQueryListener

from antiphon.errors import InvalidRequestError, UnavailableError
from antiphon.spark.lag_metrics import KEEP_S, QueryMetrics

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from pyspark.sql import SparkSession

    Page = tuple[WSGIServer, Thread]

PORT: Final = 9108


class LagListener(StreamingQueryListener):
    """Hands what Spark reports to `QueryMetrics`. Spark waits for it, in a thread of its own; it only takes notes."""

    def __init__(self, metrics: QueryMetrics) -> None:
        self.metrics = metrics

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A run of a query begins."""
        self.metrics.started(str(event.id), str(event.runId), event.name)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A micro-batch is through."""
        self.metrics.progressed(json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing new."""
        self.metrics.idled(str(event.id), str(event.runId))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A run ended."""
        self.metrics.terminated(str(event.id), str(event.runId), event.exception)


class Watch:
    """A session that is watched, until `stop()`.

    Attributes:
        metrics: what is known; a Prometheus collector.
        registry: the registry that `metrics` is in.
        address: `host:port` of the page `/metrics`, or None where none is served.
    """

    def __init__(
        self,
        spark: "SparkSession",
        metrics: QueryMetrics,
        registry: CollectorRegistry,
        page: "Page | None",
    ) -> None:
        self.metrics = metrics
        self.registry = registry
        self.address: str | None = None
        if page is not None:
            host, port = page[0].server_address[:2]
            self.address = f"{host!s}:{port}"
        self._spark = spark
        self._page = page
        self._listener: LagListener | None = LagListener(metrics)
        spark.streams.addListener(self._listener)
        registry.register(metrics)

    def stop(self) -> None:
        """Stop listening and serving. Harmless when done already, or when Spark has stopped."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        self.registry.unregister(self.metrics)
        _close(self._page)
        with contextlib.suppress(
            Exception
        ):  # a session that has stopped has no listeners, and says so in many ways
            self._spark.streams.removeListener(listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def watch(
    spark: "SparkSession",
    port: int | None = PORT,
    *,
    host: str = "127.0.0.1",
    insecure: bool = False,
    registry: CollectorRegistry | None = None,
    keep_s: float = KEEP_S,
) -> Watch:
    """Publish lag and progress of the session's streaming queries that read topics or tables, as `http://host:port/metrics`.

    `antiphon_spark_lag_offsets{query=,topic=,shard=}` is the lag; `query` is the query's name (`queryName`), or its id.
    Watch before queries are started: Spark tells of a start only once.

    Args:
        spark: the session; a classic one or one of Spark Connect.
        port: where to serve; 0 for any free port, None to serve nothing (then bring a `registry`).
        host: address to listen at; "0.0.0.0" for all of this machine's, which takes `insecure`.
        insecure: let everybody who reaches a `host` beyond this machine read names of queries and topics.
        registry: a registry of yours that the metrics join; default: one of their own.
        keep_s: for how many seconds a query that ended is still shown.

    Raises:
        UnavailableError: somebody else listens at that port.
        InvalidRequestError: others reach that host, and `insecure` is not set.
    """
    if port is not None and not insecure and not _is_loopback(host):
        raise InvalidRequestError(
            f"asked to serve metrics at {host or 'all addresses'}, where other machines reach them, without TLS or a login: "
            "listen on 127.0.0.1, or say so with insecure=True"
        )
    registry = registry if registry is not None else CollectorRegistry()
    page = None
    if port is not None:
        try:
            page = start_http_server(port, host, registry)
        except OSError as error:
            raise UnavailableError(
                f"cannot serve metrics at {host}:{port}: {error.strerror or error}; give another port, or 0 for any"
            ) from error
    try:
        return Watch(spark, QueryMetrics(keep_s), registry, page)
    except BaseException:
        _close(page)
        raise


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _close(page: "Page | None") -> None:
    if page is not None:
        server, thread = page
        server.shutdown()
        server.server_close()
        thread.join()
