"""Rows of tables, and their versions."""

from typing import Any, Generic

import msgspec

from antiphon.records.display import html_table, line
from antiphon.records.value_type import ValueT_co


class Version(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Version of a key's value. `id` is unique in its shard and rises; `modifications` is 0 at creation."""

    id: int
    modifications: int
    created_ms: int
    modified_ms: int


class Row(msgspec.Struct, Generic[ValueT_co], frozen=True, array_like=True, gc=False):
    """A key as it stands. `value` is None when it was not asked for, `session_id` where it belongs to no session.

    `Row` is a row of bytes, as nodes send it; `Row[Order]` one whose value a codec of the client has decoded.
    """

    key: bytes
    value: ValueT_co
    version: Version
    session_id: int | None = None
    attributes: bytes | None = None  # packed (`records.attributes`)

    def display(self) -> dict[str, Any]:
        """Its fields, as people see them: of the version its id."""
        return {
            "key": self.key,
            "value": self.value,
            "version": self.version.id,
            "session_id": self.session_id,
        }

    def __repr__(self) -> str:
        return line("Row", self.display())

    def _repr_html_(self) -> str:
        return html_table([self.display()])
