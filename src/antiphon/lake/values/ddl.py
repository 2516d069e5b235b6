"""Columns written as in SQL (`id bigint, tags array<string>, at struct<x: int>`) as Arrow's, without a running Spark."""

import re
from typing import Final

import pyarrow as pa

from antiphon.client.given import meant
from antiphon.errors import InvalidRequestError

_TYPES: Final = {
    "bigint": pa.int64(), "long": pa.int64(), "int": pa.int32(), "integer": pa.int32(), "smallint": pa.int32(),
    "short": pa.int32(), "tinyint": pa.int32(), "byte": pa.int32(), "string": pa.string(), "double": pa.float64(),
    "float": pa.float32(), "real": pa.float32(), "boolean": pa.bool_(), "date": pa.date32(), "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"), "decimal": pa.decimal128(10, 0), "dec": pa.decimal128(10, 0),
    "numeric": pa.decimal128(10, 0),
}  # fmt: skip
_NESTED: Final = ("array", "struct", "map")
_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|'((?:[^']|'')*)'|([^\s`',:<>()]+)|([,:<>()]))")
_DEPTH_MAX: Final = 30
_PRECISION_MAX: Final = 38


def parse_columns(text: str) -> pa.Schema:
    """Raises InvalidRequestError that says where it goes wrong."""
    tokens = _Tokens(text)
    fields = tokens.fields("", 0)
    if tokens.next() is not None:
        raise tokens.wrong("ends too late")
    names = [one.name.lower() for one in fields]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequestError(f"schema names column {name} twice")
    return pa.schema(fields)


class _Tokens:
    """Words, quoted names and marks of the text, read once from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def next(self) -> str | None:
        """The next word or mark; None at the end."""
        found = self._match()
        if found is None:
            return None
        self._at = found.end()
        return found[1] or found[2] or found[3] or found[4] or ""

    def peek(self) -> str | None:
        """The next one, which stays."""
        found = self._match()
        return None if found is None else found[1] or found[2] or found[3] or found[4] or ""

    def _match(self) -> "re.Match[str] | None":
        if not self._text[self._at :].strip():
            return None
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self.wrong("cannot be read")
        return found

    def wrong(self, what: str) -> InvalidRequestError:
        """An error that shows the place."""
        before = self._text[: self._at].rstrip()[-40:]
        return InvalidRequestError(
            f"schema is not a list of columns and types, such as `id bigint, name string`: it {what} after {before!r}"
        )

    def expect(self, mark: str) -> None:
        """A mark that has to come now."""
        if self.next() != mark:
            raise self.wrong(f"lacks {mark}")

    def fields(self, end: str, depth: int) -> list[pa.Field]:
        """`name type` or `name: type`, separated by commas, up to `end` (which stays)."""
        found: list[pa.Field] = []
        while True:
            name = self.next()
            if name is None or name in {",", ":", "<", ">", "(", ")"}:
                raise self.wrong("lacks a column's name")
            if self.peek() == ":":
                self.next()
            found.append(pa.field(name.replace("``", "`"), self.kind(name, depth)))
            self._options()
            if self.peek() != ",":
                break
            self.next()
        if end and self.peek() != end:
            raise self.wrong(f"lacks {end}")
        return found

    def _options(self) -> None:
        """`NOT NULL` (lake tables do not promise it) and `COMMENT '...'`."""
        while (word := self.peek()) is not None and word.lower() in {"not", "null", "comment"}:
            self.next()
            if word.lower() == "comment":
                self.next()

    def kind(self, column: str, depth: int) -> pa.DataType:
        """A type."""
        name = (self.next() or "").lower()
        if depth > _DEPTH_MAX:
            raise self.wrong("is nested too deeply")
        if name in _NESTED:
            self.expect("<")
            kind = self._nested(name, column, depth + 1)
            self.expect(">")
            return kind
        if name not in _TYPES:
            hint = meant(name, [*_TYPES, *_NESTED])
            raise InvalidRequestError(f"schema: column {column} has no type {name!r}; {hint}")
        if _TYPES[name] == _TYPES["decimal"] and self.peek() == "(":
            return self._decimal()
        return _TYPES[name]

    def _nested(self, name: str, column: str, depth: int) -> pa.DataType:
        if name == "struct":
            return pa.struct(self.fields(">", depth))
        first = self.kind(column, depth)
        if name == "array":
            return pa.list_(first)
        self.expect(",")
        return pa.map_(first, self.kind(column, depth))

    def _decimal(self) -> pa.DataType:
        self.expect("(")
        numbers = [self._number()]
        if self.peek() == ",":
            self.next()
            numbers.append(self._number())
        self.expect(")")
        precision, scale = (*numbers, 0)[:2]
        if not 1 <= precision <= _PRECISION_MAX or scale > precision:
            raise self.wrong(f"has an impossible decimal({precision},{scale})")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        word = self.next() or ""
        if not word.isdigit():
            raise self.wrong("lacks a number")
        return int(word)
