"""Reads of Oxia's clients: gets, lists and scans of one shard, each answered from what is committed.

Keys are in the order that the table was made with (`records.key_order`). A row whose key is no UTF-8, which only others
than Oxia's clients can put, is not shown: one such key would make a whole answer unreadable.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.gateway.protobuf import encode, put_sized
from antiphon.model.attributes import IndexFind, IndexRows, IndexScan
from antiphon.model.key_order import OrderedFind, OrderedKeys, OrderedScan
from antiphon.model.metadata import ShardMeta
from antiphon.model.requests import TableGet, TableRows, TableScan
from antiphon.model.rows import Row
from antiphon.oxia.messages import GetRequest, GetResponse, RangeRequest, Status, Version
from antiphon.oxia.shards import GET_BYTES_MAX, ShardRequests, reply_as
from antiphon.oxia.status import INVALID_ARGUMENT, CallFailedError
from antiphon.records.attributes import unpack
from antiphon.records.key_order import is_text, sort_key

if TYPE_CHECKING:
    from antiphon.oxia.call import Call
    from antiphon.oxia.placing import Place
    from antiphon.security.authorizer import Rights

EQUAL, HIGHER = 0, 4
GETS_MAX: Final = 10_000  # of one request
TOGETHER: Final = 500  # gets that one request to the shard has
ANSWER_BYTES: Final = 1024 * 1024  # after which a message ends, and another one begins
PAGE_ROWS: Final = 1_000
LIST_KEYS: Final = 10_000
Page = tuple[list[Any], bool, Any]


class Asked(NamedTuple):
    """A list or a scan of one shard, and who asks; `values`: whole rows are wanted."""

    place: "Place"
    wanted: RangeRequest
    rights: "Rights"
    call: "Call"
    values: bool


class Reads:
    """See the module's text; for all calls of a listener.

    Attributes:
        page_rows: that are read at once for a scan.
        list_keys: the same for a list.
    """

    def __init__(self, shards: ShardRequests) -> None:
        self._shards = shards
        self.page_rows = PAGE_ROWS
        self.list_keys = LIST_KEYS

    async def gets(
        self, place: "Place", wanted: list[GetRequest], rights: "Rights", call: "Call"
    ) -> AsyncIterator[bytearray]:
        """The messages that answer gets, in their order."""
        if len(wanted) > GETS_MAX:
            raise CallFailedError(INVALID_ARGUMENT, f"a read has {GETS_MAX} gets at most, not {len(wanted)}")
        out, at = bytearray(), 0
        while at < len(wanted):
            end = at + 1
            while end < len(wanted) and end - at < TOGETHER and _alike(wanted[at], wanted[end]):
                end += 1
            if out and not call.may_read(GET_BYTES_MAX):
                yield out  # it holds nothing that others wait for while it waits for room itself
                out = bytearray()
                call.keep(0)
            responses = await self._some(place, wanted[at:end], rights, call)
            responses.reverse()
            while responses:  # what is sent is let go of
                response = responses.pop()
                if out and len(out) + len(response) > ANSWER_BYTES:
                    yield out
                    out = bytearray()
                put_sized(out, 0x0A, response)
            call.keep(len(out))
            at = end
        yield out

    async def _some(
        self, place: "Place", wanted: list[GetRequest], rights: "Rights", call: "Call"
    ) -> list[bytes | bytearray]:
        """The responses to gets that are alike."""
        first = wanted[0]
        if not EQUAL <= first.comparison_type <= HIGHER:
            raise CallFailedError(
                INVALID_ARGUMENT, f"a comparison is 0 (equal) to 4 (higher), not {first.comparison_type}"
            )
        if first.secondary_index_name is not None:
            return [await self._by_index(place, one, rights, call) for one in wanted]
        keys = tuple(one.key for one in wanted)
        if place.is_hierarchical and first.comparison_type != EQUAL:  # the rows next to keys in that order
            shard, next_to, values = place.shard, first.comparison_type, first.include_value
            rows = await self._rows(
                OrderedFind(shard.shard_id, keys, next_to, values, shard.hashes), rights, call
            )
        else:
            rows = await self._rows(_get_of(place.shard, keys, first), rights, call)
        found = []
        for one, row in zip(wanted, rows, strict=True):
            if row is None and first.comparison_type == EQUAL:
                other = place.elsewhere(one.key)
                if other is not None:
                    (row,) = await self._rows(_get_of(other, (one.key,), first), rights, call)
            found.append(_response(row, one))
        return found

    async def _rows(
        self, body: TableGet | OrderedFind, rights: "Rights", call: "Call"
    ) -> tuple[Row[Any] | None, ...]:
        return reply_as(TableRows, await self._shards.read(body, rights, call)).rows

    async def _by_index(
        self, place: "Place", one: GetRequest, rights: "Rights", call: "Call"
    ) -> bytes | bytearray:
        body = IndexFind(
            place.shard.shard_id,
            one.secondary_index_name or "",
            one.key,
            one.comparison_type,
            one.include_value,
        )
        reply: IndexRows = reply_as(IndexRows, await self._shards.read(body, rights, call))
        if not reply.rows:
            return _response(None, one)
        found = reply.rows[0]
        return _response(found.row, one, found.secondary)

    async def pages(
        self,
        place: "Place",
        wanted: RangeRequest,
        rights: "Rights",
        call: "Call",
        *,
        values: bool,
    ) -> AsyncIterator[list[Any]]:
        """Rows of a range, or their keys without `values`, in the order of the table or of an index.

        Each page is of one moment.
        """
        asked = Asked(place, wanted, rights, call, values)
        read = self._page
        if wanted.secondary_index_name is not None:
            read = self._index_page
        elif place.is_hierarchical:
            read = self._ordered_page
        after: Any = None  # where the next page begins: behind this
        more = not is_empty(wanted, hierarchical=read == self._ordered_page)
        while more:
            page, more, after = await read(asked, after)
            yield page  # who takes it lets go of each row that was sent

    async def _page(self, asked: Asked, after: Any) -> Page:
        """Rows or keys in the order of bytes, whether there are more, and behind which key those begin."""
        place, wanted, rights, call, values = asked
        limit = self.page_rows if values else self.list_keys
        start = wanted.start_inclusive if after is None else after + b"\x00"
        shard_id, end = place.shard.shard_id, wanted.end_exclusive
        body = TableScan(shard_id, start, end, limit, values, hashes=place.hashes)
        rows: TableRows = reply_as(TableRows, await self._shards.read(body, rights, call))
        page = [row for row in rows.rows if row is not None]
        return _results(page, values), rows.more, page[-1].key if page else after

    async def _ordered_page(self, asked: Asked, after: Any) -> Page:
        """The same in the hierarchical order. All keys there are text."""
        place, wanted, rights, call, values = asked
        start, end = wanted.start_inclusive, wanted.end_exclusive
        limit = self.page_rows if values else self.list_keys
        body = OrderedScan(place.shard.shard_id, start, end, after, limit, not values, place.hashes)
        reply = await self._shards.read(body, rights, call)
        if not values:
            found: OrderedKeys = reply_as(OrderedKeys, reply)
            return list(found.keys), found.more, found.keys[-1] if found.keys else after
        rows: TableRows = reply_as(TableRows, reply)
        page = [row for row in rows.rows if row is not None]
        return page, rows.more, page[-1].key if page else after

    async def _index_page(self, asked: Asked, after: Any) -> Page:
        """The same by an index; pages go on behind an entry."""
        place, wanted, rights, call, values = asked
        limit = self.page_rows if values else self.list_keys
        name, start, end = wanted.secondary_index_name or "", wanted.start_inclusive, wanted.end_exclusive
        body = IndexScan(place.shard.shard_id, name, start, end, after, limit, values, place.hashes)
        found: IndexRows = reply_as(IndexRows, await self._shards.read(body, rights, call))
        page = [one.row for one in found.rows]
        if page:
            after = (found.rows[-1].secondary, page[-1].key)
        return _results(page, values), found.more, after


def is_empty(wanted: RangeRequest, *, hierarchical: bool) -> bool:
    """Does a range end before it begins?"""
    start, end = wanted.start_inclusive, wanted.end_exclusive
    if not end:
        return False
    return sort_key(start) >= sort_key(end) if hierarchical else start >= end


def _results(rows: list[Row[Any]], values: bool) -> list[Any]:
    """What a client hears of rows."""
    return [row if values else row.key for row in rows if is_text(row.key)]


def _alike(one: GetRequest, other: GetRequest) -> bool:
    return (
        one.comparison_type == other.comparison_type
        and one.include_value == other.include_value
        and one.secondary_index_name is None
        and other.secondary_index_name is None
    )


def version_of(row: Row[Any]) -> Version:
    """A row's version as Oxia's clients see it."""
    found = row.version
    attributes = None if row.attributes is None else unpack(row.attributes)
    return Version(
        version_id=found.id,
        modifications_count=found.modifications,
        created_timestamp=found.created_ms,
        modified_timestamp=found.modified_ms,
        session_id=row.session_id,
        client_identity=None if attributes is None else attributes.identity,
    )


def _get_of(shard: ShardMeta, keys: tuple[bytes, ...], like: GetRequest) -> TableGet:
    return TableGet(
        shard.shard_id,
        keys,
        comparison=like.comparison_type,
        include_value=like.include_value,
        placed=True,
        hashes=shard.hashes,
    )


def _response(row: Row[Any] | None, wanted: GetRequest, secondary: bytes | None = None) -> bytes | bytearray:
    if row is None or not is_text(row.key):
        return bytes((0x08, Status.KEY_NOT_FOUND))
    is_named = wanted.comparison_type == EQUAL and secondary is None
    return encode(
        GetResponse(
            version=version_of(row),
            value=row.value if wanted.include_value else None,
            key=None if is_named else row.key,
            secondary_index_key=None if secondary is None else secondary.decode(),
        )
    )


def record(row: Row[Any]) -> bytearray:
    """A row of a scan."""
    return encode(GetResponse(version=version_of(row), value=row.value, key=row.key))
