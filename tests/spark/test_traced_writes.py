"""A traced write of Spark to real nodes, without Spark: what tasks and the commit ask of nodes is part of their spans."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql.types import BinaryType, StructField, StructType

import antiphon
from antiphon.spark.write.sink import BatchSink
from tests.recorded_spans import recorded_spans
from tests.spark.nodes_in_thread import LiveNodes, live_nodes
from tests.spark.test_sink_nodes import options_for, rows

pytestmark = pytest.mark.cluster
SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    with recorded_spans() as found:
        yield found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[LiveNodes]:
    with live_nodes(tmp_path, 1) as nodes:
        yield nodes


@pytest.mark.parametrize("protocol", ["staged", "direct"])
@pytest.mark.parametrize("kind", ["topic", "table"])
def test_what_tasks_and_the_commit_ask_for_is_under_them(
    nodes: LiveNodes, exporter: InMemorySpanExporter, kind: str, protocol: str
) -> None:
    with antiphon.connect(nodes.servers) as db:
        (db.create_topic if kind == "topic" else db.create_table)("out", shards=2)
    exporter.clear()
    sink = BatchSink(options_for(nodes, protocol=protocol, **{kind: "out"}), SCHEMA, overwrite=False)
    sink.commit([sink.write(iter([rows(0, 50)]))])
    spans = exporter.get_finished_spans()
    by_id = {one.context.span_id: one for one in spans}

    def ask(of: str) -> set[str]:
        """Names of the requests that are children of spans of this name."""
        return {
            one.name.removeprefix("antiphon ")
            for one in spans
            if one.parent is not None and named(one.parent) == f"antiphon spark {of}"
        }

    def named(parent: Any) -> str:
        found = by_id.get(parent.span_id)
        return "" if found is None else str(found.name)

    (root,) = [one for one in spans if one.name == "antiphon spark epoch"]
    of_tasks, of_commits = ask("task"), ask("commit")
    into_target = "AppendBatch" if kind == "topic" else "TableWrite"
    if protocol == "staged":
        assert "AppendBatch" in of_tasks, "rows are staged"
        assert {into_target, "TableWrite"} <= of_commits, "the epoch is decided and applied"
    else:
        assert into_target in of_tasks
    for one in spans:
        if one.parent is not None and one.parent.span_id in by_id:
            assert one.context.trace_id == by_id[one.parent.span_id].context.trace_id
            assert one.context.trace_id == root.context.trace_id, one.name
