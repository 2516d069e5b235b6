"""What people see of clients, topics, tables, records and rows: short, and safe whatever keys and values are."""

import re
from typing import Any

import msgspec
import pytest

import antiphon
import antiphon.aio
from antiphon.client.aio import AsyncClient
from antiphon.client.show import show
from antiphon.errors import InvalidRequestError
from antiphon.model.rows import Row, Version
from antiphon.records.changes import ChangeKind
from antiphon.records.decode import Record
from antiphon.records.display import BYTES_SHOWN, TEXT_SHOWN, shown
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import FailingNodes

HOSTILE = b"<script>alert('\"&')</script>\x1b[31m"
VERSION = Version(7, 0, 1, 2)


class Order(msgspec.Struct):
    item: str


def cells(html: str) -> list[str]:
    return re.findall(r"<td>(.*?)</td>", html)


def test_a_line_each() -> None:
    assert repr(Record(5, 6, b"k", None, ())) == (
        "Record(offset=5, timestamp_ms=6, key=b'k', value=None, headers=())"
    )
    assert repr(Row(b"k", Order("tea"), VERSION)) == (
        "Row(key=b'k', value=Order(item='tea'), version=7, session_id=None)"
    )
    change = antiphon.Change(b"k", b"v", VERSION, ChangeKind.CREATED, 1, 2, 3)
    assert repr(change) == (
        "Change(key=b'k', value=b'v', version=7, kind='created', shard=1, offset=2, timestamp_ms=3, session_id=None)"
    )


@pytest.mark.parametrize(
    "value",
    [
        b"x" * 10_000_000,
        "x" * 10_000_000,
        Order("x" * 1_000_000),
        [b"\0" * 100_000] * 10,
        {"a": "\n" * 5_000},
    ],
    ids=["bytes", "text", "struct", "list", "lines"],
)
def test_what_is_long_is_cut(value: Any) -> None:
    text = repr(Row(b"k", value, VERSION))
    assert len(text) < 4 * max(BYTES_SHOWN, TEXT_SHOWN) + 200
    assert "..." in text
    assert len(Row(b"k", value, VERSION)._repr_html_()) < 3000


@pytest.mark.parametrize("value", [HOSTILE, HOSTILE.decode(), Order(HOSTILE.decode()), "\u202e\u2066gnp.exe"])
def test_nothing_of_a_value_becomes_markup_or_a_control_character(value: Any) -> None:
    record = Record(0, 0, HOSTILE, value, ((HOSTILE.decode(), HOSTILE),))
    for text in (repr(record), record._repr_html_(), show([record])._repr_html_(), repr(show([record]))):
        assert text.isprintable()
    for html in (
        record._repr_html_(),
        Row(HOSTILE, value, VERSION)._repr_html_(),
        show([value])._repr_html_(),
    ):
        inner = "".join(cells(html))
        assert inner
        assert not set("<>\"'") & set(inner)
        assert set(re.findall(r"</?([a-z]+)", html)) <= {
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "caption",
        }


def test_a_repr_over_several_lines_is_one_line() -> None:
    class Lines:
        def __repr__(self) -> str:
            return "a\nb"

    assert shown(Lines()) == "a\\nb"


def test_show_takes_no_more_than_it_shows() -> None:
    taken: list[int] = []

    def records() -> Any:
        for offset in range(1000):
            taken.append(offset)
            yield Record(offset, 0, None, b"v", ())

    few = show(records(), 3)
    assert len(taken) == 4
    assert repr(few).splitlines()[-1] == "..."
    assert repr(few).count("Record(") == 3
    assert few._repr_html_().count("<tr>") == 4
    assert "the first 3" in few._repr_html_()
    assert "the first" not in show([Row(b"k", b"v", VERSION), None])._repr_html_()
    assert repr(show([])) == "nothing"
    assert show([])._repr_html_().count("<td>") == 0
    assert antiphon.show is show
    with pytest.raises(InvalidRequestError, match="limit"):
        show([], 0)


@in_a_cluster
async def test_clients_and_handles(cluster: FailingNodes, db: AsyncClient) -> None:
    assert repr(db) == f"<antiphon.aio.AsyncClient of {cluster.servers}, open>"
    unknown = db.table("<b>")
    assert repr(unknown) == "<antiphon.aio.AsyncTable '<b>'>"
    assert "<b>" not in unknown._repr_html_()
    assert repr(await db.create_topic("flights", shards=2)) == "<antiphon.aio.AsyncTopic 'flights', 2 shards>"
    await db.create_table("orders")
    orders = db.table("orders", type=Order)
    assert repr(orders) == "<antiphon.aio.AsyncTable 'orders' of Order, 1 shard>"
    assert cells(orders._repr_html_())[0] == "0"
    assert "table orders, profile" in orders._repr_html_()
    await db.close()
    assert repr(db).endswith("closed>")
