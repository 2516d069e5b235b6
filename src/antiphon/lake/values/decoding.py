"""From a record's value to columns: what every format has in common.

A format decodes many values at once and fails as a whole; then the bad ones are found: first by a cheap look at each, then
by halving what still fails. So good records cost what the format's library costs, and one bad record among many costs
little.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from antiphon.errors import InvalidRequestError
from antiphon.lake.values.formats import FORMATS, ValueFormat
from antiphon.lake.values.projection import REASON_CHARS_MAX, Projection

NEW_FIELDS: Final = ("add", "rest", "drop", "reject")
REST: Final = "_rest"
SLICE_BYTES: Final = 32 * 1024 * 1024  # of values that are decoded at once
CONFLUENT_HEADER_BYTES: Final = 5
CONFLUENT_MAGIC: Final = 0


class DecodeError(ValueError):
    """A value, or one of several, is not what the schema says."""


DECODE_ERRORS: Final = (
    DecodeError, pa.ArrowException, ValueError, TypeError, OverflowError, EOFError, LookupError, ArithmeticError,
    AttributeError, RecursionError,
)  # fmt: skip


class Decoded(NamedTuple):
    """Columns of the values that are good, in order; which those are; and why the others are not."""

    columns: pa.Table
    good: list[int]
    bad: list[tuple[int, str]]


@dataclass(frozen=True)
class ValueSpec:
    """How values are to be read. Travels to tasks.

    `schema`: of JSON, the columns (None: those of the target); `avsc`: Avro's schema; `writers`: Avro schemas by their id in
    Confluent's framing; `descriptors` and `message`: Protobuf's; `confluent`: values begin with a schema id; `container`:
    Avro values are files of one record, which bring the schema they were written with; `new_fields`: what becomes of JSON
    fields that have no column: `add` a column, keep them in `_rest`, `drop` them, or `reject` the record; `blocked`: those
    that get no column although `add` is asked for; `projection`: what becomes of the decoded columns.
    """

    format: str
    schema: pa.Schema | None = None
    avsc: str | None = None
    writers: dict[int, str] = field(default_factory=dict, hash=False)
    descriptors: bytes | None = None
    message: str | None = None
    confluent: bool = False
    container: bool = False
    new_fields: str = "add"
    blocked: frozenset[str] = frozenset()
    projection: Projection | None = None

    @property
    def row(self) -> ValueFormat:
        """The format."""
        return FORMATS[self.format]

    def does_with_new_fields(self, what: str) -> bool:
        """Is that what becomes of fields without a column? Never of formats that have no such fields."""
        return "new_fields" in self.row.options and self.new_fields == what


class Decoder(ABC):
    """Values of one format.

    `found` collects new fields that deserve a column, name -> type; `mixed` those whose values have no type in common.
    """

    columns: pa.Schema

    def __init__(self) -> None:
        self.found: dict[str, pa.DataType] = {}
        self.mixed: set[str] = set()

    @abstractmethod
    def table(self, values: pa.Array) -> pa.Table:
        """Columns of values of which none is null; raises one of DECODE_ERRORS where one of them is bad."""

    def screen(self, values: pa.Array) -> list[tuple[int, str]]:  # noqa: ARG002 - formats know more
        """Values that are bad for sure, with the reason."""
        return []


class RowDecoder(Decoder):
    """Values that are read one by one, each to a row of type `kind`, a struct."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__()
        self._kind = kind
        self.columns = pa.schema(list(kind))

    @abstractmethod
    def read(self, value: bytes) -> dict[str, Any]:
        """One value; raises one of DECODE_ERRORS."""

    def table(self, values: pa.Array) -> pa.Table:
        """All of them, one by one."""
        rows = pa.array([self.read(value) for value in values.to_pylist()], self._kind)
        return pa.Table.from_arrays(rows.flatten(), schema=self.columns)

    def screen(self, values: pa.Array) -> list[tuple[int, str]]:
        """Values that cannot be read."""
        found = []
        for index, value in enumerate(values.to_pylist()):
            try:
                self.read(value)
            except DECODE_ERRORS as error:
                found.append((index, reason(error)))
        return found


def decode(decoder: Decoder, values: pa.Array, bad_max: int | None = None) -> Decoded:
    """Decode binary values of which none is null. `bad_max`: after so many bad ones, the rest are not looked at.

    With `bad_max` reached, `good` and `bad` together do not name every value.
    """
    parts: list[pa.Table] = []
    good: list[int] = []
    bad: list[tuple[int, str]] = []
    for start, count in _slices(values):
        _decode(decoder, values.slice(start, count), list(range(start, start + count)), (parts, good, bad))
        if bad_max is not None and len(bad) >= bad_max:
            break
    columns = pa.concat_tables(parts) if parts else decoder.columns.empty_table()
    return Decoded(columns, good, sorted(bad))


def _slices(values: pa.Array) -> list[tuple[int, int]]:
    total = pc.sum(pc.binary_length(values)).as_py() or 0
    if total <= SLICE_BYTES:
        return [(0, len(values))] if len(values) else []
    rows = max(1, len(values) * SLICE_BYTES // total)
    return [(start, min(rows, len(values) - start)) for start in range(0, len(values), rows)]


_Out = tuple[list[pa.Table], list[int], list[tuple[int, str]]]


def _decode(decoder: Decoder, values: pa.Array, places: list[int], out: _Out) -> None:
    parts, good, bad = out
    try:
        parts.append(decoder.table(values))
    except DECODE_ERRORS as error:
        known = decoder.screen(values)
        if not known and len(values) == 1:
            known = [(0, reason(error))]
        if known:
            bad += [(places[index], why) for index, why in known]
            out_of_it = {index for index, _ in known}
            left = [index for index in range(len(values)) if index not in out_of_it]
            if left:
                _decode(decoder, values.take(pa.array(left)), [places[index] for index in left], out)
            return
        half = len(values) // 2
        _decode(decoder, values.slice(0, half), places[:half], out)
        _decode(decoder, values.slice(half), places[half:], out)
        return
    good += places


def reason(error: BaseException) -> str:
    """Why a value is bad, on one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, DecodeError | pa.ArrowException):
        text = f"{type(error).__name__}: {text}"
    return text[:REASON_CHARS_MAX]


def unframed(value: bytes) -> tuple[int, memoryview]:
    """Schema id and payload of a value in Confluent's framing: a zero byte, four bytes of id, the payload."""
    if len(value) < CONFLUENT_HEADER_BYTES or value[0] != CONFLUENT_MAGIC:
        raise DecodeError("the value does not begin with a zero byte and a schema id")
    return int.from_bytes(value[1:CONFLUENT_HEADER_BYTES], "big"), memoryview(value)[CONFLUENT_HEADER_BYTES:]


def check_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """One of a few words; raises InvalidRequestError."""
    if value not in choices:
        raise InvalidRequestError(f"{name} is one of {', '.join(choices)}, not {value!r}")
    return value
