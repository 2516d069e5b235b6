"""Formats `raw` and `text`: one column, the value."""

from typing import TYPE_CHECKING

import pyarrow as pa

from antiphon.lake.values.decoding import Decoder, ValueSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from antiphon.lake.values.options import ValueOptions


def spec(options: "ValueOptions") -> ValueSpec:
    """See `spec.Format`, as for the others."""
    return ValueSpec(options.format)


def fixed_columns(spec: ValueSpec) -> pa.Schema:
    """One column."""
    return pa.schema([("value", pa.string() if spec.format == "text" else pa.binary())])


def decoder(spec: ValueSpec, columns: pa.Schema) -> Decoder:  # noqa: ARG001 - there is one column
    """See `PlainDecoder`."""
    return PlainDecoder(fixed_columns(spec))


def learnt(spec: ValueSpec, values: "Sequence[bytes | None]", source: str) -> ValueSpec:  # noqa: ARG001 - as it is
    """There is nothing to learn."""
    return spec


class PlainDecoder(Decoder):
    """The value as it is, or as text."""

    def __init__(self, columns: pa.Schema) -> None:
        super().__init__()
        self.columns = columns

    def table(self, values: pa.Array) -> pa.Table:
        """One column."""
        return pa.table([values.cast(self.columns.field(0).type)], schema=self.columns)
