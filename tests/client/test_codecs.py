"""Topics and tables whose values are objects: what codecs make of them, through both clients, and what type checkers see."""

import dataclasses
from typing import Any, NamedTuple, TypedDict, assert_type

import msgspec
import pydantic
import pytest

import antiphon
from antiphon.client.aio import AsyncClient
from antiphon.client.codecs import Codec, JsonCodec, MsgpackCodec, TextCodec, codec_of
from antiphon.client.values import KEY_SHOWN, Values
from antiphon.errors import BadRecordError, InvalidRequestError, KeyNotFoundError, VersionMismatchError
from antiphon.model.rows import Row, Version
from antiphon.records.decode import Record
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import FailingNodes


class Order(msgspec.Struct):
    item: str
    count: int = 1


@dataclasses.dataclass
class Flight:
    tail: str
    minutes: list[int]


class Model(pydantic.BaseModel):
    name: str
    size: float = 0.5


class Typed(TypedDict):
    a: int


class Pair(NamedTuple):
    left: int
    right: str


class Shouted:
    """A codec of a program's own."""

    def encode(self, value: str, /) -> bytes:
        return value.upper().encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode().lower()


VALUES = [
    (Order, Order("tea", 2)),
    (Flight, Flight("N14228", [1, 2])),
    (Model, Model(name="x")),
    (Typed, {"a": 1}),
    (Pair, Pair(1, "b")),
    (dict, {"any": ["thing", None]}),
    (list[int], [1, 2]),
    (str, "schön"),
    (int, 7),
    (float, 0.5),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=str)
def test_what_is_encoded_is_decoded(kind: Any, value: Any) -> None:
    codec: Any = codec_of(None, kind)
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(InvalidRequestError):
        Values("t", codec).encode(b"k", object())
    if kind is not Model:
        packed: Any = MsgpackCodec(kind)
        assert packed.decode(packed.encode(value)) == value


def test_text_is_utf8_and_bytes_need_no_codec() -> None:
    assert TextCodec().encode("ü") == b"\xc3\xbc"
    assert codec_of(None, bytes) is None
    assert codec_of(None, None) is None
    assert repr(JsonCodec(Order)) == "JsonCodec(Order)"
    assert JsonCodec(Order).encode(Order("tea")) == b'{"item":"tea","count":1}'


def test_types_without_a_codec_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not both"):
        codec_of(TextCodec(), str)
    with pytest.raises(InvalidRequestError, match="no codec for"):
        codec_of(None, dict[tuple[int, ...], list[Any] | dict[str, int] | tuple[int, ...]])
    with pytest.raises(InvalidRequestError, match="use JsonCodec"):
        MsgpackCodec(Model)


@pytest.mark.parametrize("data", [b"", b"{", b'{"item": 7}', b"[" * 100_000, b"\xff", b'{"item": "\xff"}'])
@pytest.mark.parametrize("kind", [Order, Flight, Model])
def test_bytes_of_something_else_are_named(kind: Any, data: bytes) -> None:
    values: Values[Any] = Values("orders", JsonCodec(kind))
    with pytest.raises(BadRecordError, match=f"orders, key b'k': the value is no {kind.__name__}") as caught:
        values.decode(b"k", data)
    assert caught.value.details["key"] == "b'k'"
    assert caught.value.details["type"] == kind.__name__
    with pytest.raises(BadRecordError, match="orders, shard 3, offset 9, key None"):
        values.decode(None, data, shard=3, offset=9)


def test_a_long_key_is_cut_in_errors() -> None:
    with pytest.raises(BadRecordError, match=r"\.\.\. \(5000 bytes\)") as caught:
        Values("t", TextCodec()).decode(b"k" * 5000, b"\xff")
    assert len(caught.value.message) < KEY_SHOWN + 200


def test_rows_and_records_are_what_they_were_but_for_their_values() -> None:
    values = Values("t", JsonCodec(Order))
    version = Version(1, 2, 3, 4)
    assert values.row(Row(b"k", b'{"item":"tea"}', version, 9)) == Row(b"k", Order("tea"), version, 9)
    without: Any = Row(b"k", None, version)
    assert values.row(without) == without
    records = [Record(n, 5, b"k", data, (), 0) for n, data in enumerate([b'{"item":"a"}', None, b"bad", b""])]
    found, bad = values.records(records)
    assert [record.value for record in found] == [Order("a"), None]
    assert bad is not None
    assert (bad.details["shard"], bad.details["offset"]) == (0, 2)


@in_a_cluster
async def test_a_table_of_orders(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_table("orders")
    orders = await db.table("orders", type=Order)
    assert_type(orders, antiphon.aio.AsyncTable[Order])
    async with orders.watch() as changes:
        version = await orders.put("a", Order("tea"), expected_version=antiphon.ABSENT)
        async with orders.transaction() as t:
            t.put("b", Order("milk", 3))
            t.check("a", version.id)
        await orders.delete("b")
        found = [await anext(changes) for _ in range(3)]
    assert_type(found[0].value, Order | None)
    assert [change.value for change in found] == [Order("tea"), Order("milk", 3), None]
    row = await orders.get("a")
    assert_type(row.value, Order)
    assert (row.value.count, row.version) == (1, version)
    assert await orders.find("b") is None
    assert [one and one.value for one in await orders.get_many(["a", "b"])] == [Order("tea"), None]
    assert [row.value async for row in orders.scan()] == [Order("tea")]
    assert [row.value async for row in orders.scan(include_value=False)] == [None]
    assert await orders.list() == [b"a"]
    with pytest.raises(VersionMismatchError):
        await orders.put("a", Order("tea"), expected_version=99)
    with pytest.raises(KeyNotFoundError):
        await orders.get("b")


@in_a_cluster
async def test_a_value_of_another_type_is_neither_written_nor_read(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await db.create_table("orders")
    orders, plain = db.table("orders", type=Order), db.table("orders")
    with pytest.raises(InvalidRequestError, match="orders, key b'a': the value is no Order: it is bytes"):
        orders.put("a", b"raw")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="the value is no Order: it is dict"):
        orders.transaction().put("a", {"item": "tea"})  # type: ignore[arg-type]
    async with orders.watch() as changes:
        await orders.put("a", Order("tea"))
        await plain.put("b", b"not an order")
        assert (await anext(changes)).value == Order("tea")
        with pytest.raises(BadRecordError, match=r"orders, shard 0, offset .*, key b'b'"):
            await anext(changes)
    with pytest.raises(BadRecordError, match="orders, key b'b': the value is no Order"):
        await orders.get("b")
    with pytest.raises(BadRecordError):
        await orders.get_many(["a", "b"])
    rows = orders.scan()
    assert (await anext(rows)).value == Order("tea")
    with pytest.raises(BadRecordError):
        await anext(rows)
    assert (await plain.get("a")).value == b'{"item":"tea","count":1}'


@in_a_cluster
async def test_handles_of_one_table_write_in_the_order_of_their_puts(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await db.create_table("t")
    text, plain = db.table("t", type=str), db.table("t")
    puts = [(text.put("k", f"{n}") if n % 2 else plain.put("k", b"%d" % n)) for n in range(50)]
    assert [(await put).id for put in puts] == list(range(50))
    assert (await text.get("k")).value == "49"


@in_a_cluster
async def test_a_topic_of_flights(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("flights")
    flights = await db.topic("flights", type=Flight, compression="lz4")
    assert_type(flights, antiphon.aio.AsyncTopic[Flight])
    one = Flight("N1", [1])
    at = await flights.append(one, key="N1")
    await flights.append_batch([one, ("N2", one), ("N2", None, [("h", b"x")]), (None, one)])
    found = [record async for record in flights.read(start=at.offset)]
    assert_type(found[0].value, Flight | None)
    assert [record.value for record in found] == [one, one, one, None, one]
    assert [record.key for record in found] == [b"N1", None, b"N2", b"N2", None]
    with pytest.raises(InvalidRequestError, match="the value is no Flight"):
        await flights.append("text")  # type: ignore[arg-type]
    await db.topic("flights").append(b"text", key=b"bad")
    reading = flights.read(start=at.offset)
    assert [(await anext(reading)).key for _ in range(5)] == [b"N1", None, b"N2", b"N2", None]
    with pytest.raises(BadRecordError, match=r"flights, shard 0, offset .*, key b'bad'") as caught:
        await anext(reading)
    beyond = int(caught.value.details["offset"]) + 1
    assert [record async for record in flights.read(start=beyond)] == []


@in_a_cluster
async def test_a_codec_of_ones_own(cluster: FailingNodes, db: AsyncClient) -> None:
    codec: Codec[str] = Shouted()
    await db.create_table("t")
    table = db.table("t", codec=codec)
    assert_type(table, antiphon.aio.AsyncTable[str])
    await table.put("k", "quiet")
    assert (await table.get("k")).value == "quiet"
    assert (await db.table("t").get("k")).value == b"QUIET"
    with pytest.raises(InvalidRequestError, match="the value is no Shouted"):
        await table.put("k", 7)  # type: ignore[arg-type]
    assert db.table("t", type=bytes) is db.table("t")
