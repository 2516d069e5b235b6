"""Traces: one id from the client through the leader to the followers, and nothing where nobody records."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from antiphon import tracing
from antiphon.client.aio import AsyncClient
from antiphon.errors import VersionMismatchError
from antiphon.kafka.traces import trace_in
from antiphon.model.messages import Request
from antiphon.model.requests import AppendBatch, Fetch, Put, TableGet, TableWrite
from antiphon.records.builder import build_batch
from antiphon.simulation.cluster.mutant_worlds import TROUBLE
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.spark import traced
from antiphon.wire.frames import FrameDecoder, encode_message, trace_of, traced_frame
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import FailingNodes
from tests.kafka.raw import listening, produce
from tests.node import in_process
from tests.recorded_spans import recorded_spans

PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    with recorded_spans() as found:
        yield found


async def spans_of(exporter: InMemorySpanExporter, root: str) -> dict[str, list[Any]]:
    """Spans by name, of the trace that has a span of that name without a parent."""
    await asyncio.sleep(1)  # followers hear of commits with the next message
    spans = exporter.get_finished_spans()
    (ours,) = {one.context.trace_id for one in spans if one.name == root and one.parent is None}
    found: dict[str, list[Any]] = {}
    for one in spans:
        if one.context.trace_id == ours:
            found.setdefault(one.name.removeprefix("antiphon "), []).append(one)
    return found


def nodes_of(spans: list[Any]) -> set[int]:
    return {one.attributes["antiphon.node"] for one in spans}


def parent_name(spans: dict[str, list[Any]], one: Any) -> str:
    named = {each.context.span_id: name for name, many in spans.items() for each in many}
    return named.get(one.parent.span_id, "none")


def test_one_trace_goes_from_the_client_to_the_leader_and_to_the_followers(
    exporter: InMemorySpanExporter,
) -> None:
    @in_a_cluster
    async def work(cluster: FailingNodes, db: AsyncClient) -> None:
        topic = await db.create_topic("flights", replicas=3)
        leader = (await topic._resolved()).shards[0].leader
        await topic.append(b"value")
        spans = await spans_of(exporter, "antiphon append")
        (request,) = spans["AppendBatch"]
        assert (request.kind, nodes_of([request])) == (api.SpanKind.SERVER, {leader})
        for name in ("sync", "commit"):
            assert nodes_of(spans[name]) == {0, 1, 2}, "the leader, and each follower"
            assert {parent_name(spans, one) for one in spans[name]} == {"append"}
        roles = {
            one.attributes["antiphon.role"] for one in spans["append"] if "antiphon.role" in one.attributes
        }
        assert roles == {"leader", "follower"}
        assert all(one.end_time is not None for many in spans.values() for one in many)
        assert "apply" not in spans
        for node in cluster.nodes.nodes.values():
            assert all(
                host.state.traces is None or not host.state.traces._open for host in node.hosts.values()
            )

    work()


def test_rows_reads_scans_and_transactions_have_spans_and_errors(exporter: InMemorySpanExporter) -> None:
    @in_a_cluster
    async def work(cluster: FailingNodes, db: AsyncClient) -> None:
        table = await db.create_table("stock", replicas=3)
        await table.put("k", b"v")
        spans = await spans_of(exporter, "antiphon put")
        assert nodes_of(spans["apply"]) == {0, 1, 2}
        assert [parent_name(spans, one) for one in spans["TableWrite"]] == ["put"]
        exporter.clear()
        await table.get("k")
        assert len((await spans_of(exporter, "antiphon get"))["TableGet"]) == 1
        exporter.clear()
        assert [row.key async for row in table.scan()] == [b"k"]
        spans = await spans_of(exporter, "antiphon scan")
        assert [parent_name(spans, one) for one in spans["TableScan"]] == ["scan"]
        exporter.clear()
        async with db.producer("mover") as producer, producer.begin() as t:
            await t.put("stock", "k", b"w")
        spans = await spans_of(exporter, "antiphon transaction")
        assert "FinishTransaction" in spans
        exporter.clear()
        with pytest.raises(VersionMismatchError):
            await table.put("k", b"x", expected_version=999)
        spans = await spans_of(exporter, "antiphon put")
        assert [one.status.is_ok for one in spans["put"]] == [False]

    work()


def test_what_is_current_in_the_program_is_the_parent_and_what_does_not_record_sends_nothing() -> None:
    sent: list[Any] = []
    found = InMemorySpanExporter()
    provider = TracerProvider(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(found))

    @in_a_cluster
    async def work(cluster: FailingNodes, db: AsyncClient) -> None:
        table = await db.create_table("stock")
        tracing.install(provider)
        before = tracing.Tracer.within
        try:
            tracing.Tracer.within = lambda *given, **_: sent.append(given)  # type: ignore[method-assign]
            await table.put("k", b"v")
            await table.get("k")
        finally:
            tracing.Tracer.within = before  # type: ignore[method-assign]
            tracing.install(None)

    work()
    assert (sent, found.get_finished_spans()) == ([], ())
    tracing.install(TracerProvider())
    try:
        assert tracing.tracer is not None
        with tracing.tracer.around("outer"):
            inner = tracing.tracer.call("inner")
            current = tracing.tracer.parent()
        assert inner is not None
        assert current is not None
        assert inner.traceparent[:35] == current[:35]
        for odd in (
            "",
            "00-" + "0" * 32 + "-" + "cd" * 8 + "-01",
            PARENT[:-2] + "00",
            PARENT.replace("00-", "ff-", 1),
        ):
            assert tracing.tracer.within("x", odd) is None
    finally:
        tracing.install(None)


BODIES = [
    AppendBatch(7),
    Fetch(300, 1 << 40),
    TableGet(1, (b"key",)),
    TableWrite(70_000, (Put(b"k" * 300, b"v"),) * 50),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda one: type(one).__name__)
def test_a_trace_travels_in_a_field_that_older_versions_read_past(body: Any) -> None:
    payload = [b"bulk", b"bytes"]
    for request_id in (1, 200, 70_000, 1 << 33):
        plain, traced = encode_message(request_id, body, payload), encode_message(request_id, body, payload)
        (frame,) = FrameDecoder().feed(b"".join(traced_frame(traced, PARENT)))
        assert msgspec.msgpack.decode(frame.header, type=tuple[int, Request]) == (request_id, body)
        assert (trace_of(frame.header, body), bytes(frame.payload)) == (PARENT, b"bulkbytes")
        (frame,) = FrameDecoder().feed(b"".join(plain))
        assert trace_of(frame.header, body) is None
    assert b"".join(traced_frame(encode_message(1, body), "no trace")) == b"".join(encode_message(1, body))


def test_golden_bytes_of_a_traced_request_and_a_feed() -> None:
    frame = b"".join(traced_frame(encode_message(7, Fetch(3, 5)), PARENT))
    assert frame[8:].hex() == (
        "920797a546657463680305ce0010000000a9636f6d6d6974746564d937" + PARENT.encode().hex()
    )
    with_trace_name = AppendBatch(7, transactional_id=PARENT)
    (one,) = FrameDecoder().feed(b"".join(encode_message(1, with_trace_name)))
    assert trace_of(one.header, with_trace_name) is None, "a name that looks like a trace is none"


def test_records_of_kafka_say_their_trace_in_a_header_of_the_first() -> None:
    headers = (("other", b"x"), ("traceparent", PARENT.encode()))
    for key in (None, b"", b"key" * 100):
        assert trace_in(bytes(build_batch([(key, b"v" * 300, headers, 1), (None, b"w", (), 1)]))) == PARENT
    assert trace_in(bytes(build_batch([(None, b"v", (), 1), (None, b"w", headers, 1)]))) is None
    assert trace_in(bytes(build_batch([(None, b"v", (("traceparent", b"short"),), 1)]))) is None
    whole = bytes(build_batch([(b"k", b"v", headers, 1)]))
    for size in range(61, len(whole)):
        assert trace_in(whole[:size]) in {None, PARENT}


def test_off_nothing_is_kept_for_it() -> None:
    @in_a_cluster
    async def work(cluster: FailingNodes, db: AsyncClient) -> None:
        table = await db.create_table("stock")
        await table.put("k", b"v")
        for node in cluster.nodes.nodes.values():
            assert {host.state.traces for host in node.hosts.values()} == {None}

    assert tracing.tracer is None
    work()


def test_the_environment_decides_for_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SDK_DISABLED", *tracing._ENVIRONMENT):
        monkeypatch.delenv(name, raising=False)
    assert tracing.from_environment("node") == ""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not tracing.is_wanted()
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    assert tracing.is_wanted()
    monkeypatch.setitem(
        __import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None
    )
    with pytest.raises(ImportError, match=r"pip install 'antiphon\[otel\]'"):
        tracing.from_environment("node")
    assert tracing.tracer is None


def test_an_epoch_of_spark_its_tasks_and_its_commit_are_one_trace(exporter: InMemorySpanExporter) -> None:
    planned = traced.planned("flights")
    with traced.under("spark task", planned, epoch=3, partition=1):
        assert tracing.tracer is not None
        inside = tracing.tracer.parent()
    with traced.under("spark commit", planned, epoch=3):
        pass
    spans = {one.name: one for one in exporter.get_finished_spans()}
    root = spans["antiphon spark epoch"]
    for name in ("antiphon spark task", "antiphon spark commit"):
        assert (spans[name].context.trace_id, spans[name].parent.span_id) == (
            root.context.trace_id,
            root.context.span_id,
        )
    assert inside is not None
    assert f"{spans['antiphon spark task'].context.span_id:016x}" in inside
    tracing.install(None)
    with traced.under("spark task", "", epoch=3):
        assert traced.planned("flights") == ""


def test_a_world_with_faults_is_sound_while_it_is_traced(exporter: InMemorySpanExporter) -> None:
    options = {**TROUBLE, "fault_ms": 3_000, "operations_per_s": 100}
    result = run_cluster(draw_options(1, "oxia", **options))
    assert result.failure is None
    spans = exporter.get_finished_spans()
    assert {"antiphon append", "antiphon put", "antiphon sync", "antiphon commit", "antiphon apply"} <= {
        one.name for one in spans
    }
    assert any(not one.status.is_ok and one.name == "antiphon commit" for one in spans), (
        "leaders were deposed"
    )


def test_a_produce_of_kafka_goes_on_with_the_trace_that_its_first_record_names(
    exporter: InMemorySpanExporter,
) -> None:
    async def work() -> None:
        async with listening() as (served, connect):
            await served.create("t")
            client = await connect()
            headers = (("traceparent", PARENT.encode()),)
            records = build_batch([(None, b"v", headers, 1_000)])
            assert (await produce(client, "t", records))[0].error_code == 0
            assert (await produce(client, "t", build_batch([(None, b"w", (), 1_000)])))[0].error_code == 0
            assert served.end("t") == 2

    in_process.run(work())
    spans = exporter.get_finished_spans()
    assert {f"{one.context.trace_id:032x}" for one in spans} == {"ab" * 16}
    (produced,) = [one for one in spans if one.name == "antiphon Produce"]
    assert f"{produced.parent.span_id:016x}" == "cd" * 8
    assert {"antiphon append", "antiphon sync", "antiphon commit"} <= {one.name for one in spans}
