"""Values as they are to be read: from the options of a job to a decoder, whatever the format."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Final, Protocol, cast

import pyarrow as pa

from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.staged import lake_schema
from antiphon.lake.values.decoding import REST, Decoder, ValueSpec, check_choice
from antiphon.lake.values.formats import FORMATS, ValueFormat
from antiphon.lake.values.options import ValueOptions
from antiphon.lake.values.projection import Projection

FRAMINGS: Final = ("none", *dict.fromkeys(name for one in FORMATS.values() for name in one.framings))


class Format(Protocol):
    """What a format's module has, as plain functions."""

    def spec(self, options: ValueOptions) -> ValueSpec:
        """The checked form of options that apply to the format. Raises InvalidRequestError naming the option."""

    def fixed_columns(self, spec: ValueSpec) -> pa.Schema | None:
        """Columns of the values; None where the data says. Raises InvalidRequestError."""

    def decoder(self, spec: ValueSpec, columns: pa.Schema) -> Decoder:
        """What decodes values into `columns`, or into those that the values' own schema has."""

    def learnt(self, spec: ValueSpec, values: Sequence[bytes | None], source: str) -> ValueSpec:
        """With the schema that a sample of the source's values has, for formats whose `fixed_columns` may be None."""


def _functions(row: ValueFormat) -> Format:
    """What a format does; loads its library."""
    return cast("Format", import_module(row.module))


def value_spec(options: ValueOptions) -> ValueSpec:
    """The checked form. Raises InvalidRequestError naming the option."""
    check_choice("format", options.format, tuple(FORMATS))
    check_choice("framing", options.framing, FRAMINGS)
    row = FORMATS[options.format]
    _check_applies(options, row)
    functions = _functions(row)
    spec = functions.spec(options)
    columns = functions.fixed_columns(spec)
    if columns is not None:
        lake_schema(columns)
    if options.select is None and options.where is None:
        return spec
    if spec.does_with_new_fields("add"):
        raise InvalidRequestError(
            "select and where need columns that are known: give schema, and a value of new_fields other than add"
        )
    return replace(spec, projection=Projection(options.select or "*", options.where))


def _check_applies(options: ValueOptions, row: ValueFormat) -> None:
    given = {
        "schema": options.schema,
        "message": options.message,
        "writers": options.writers or None,
        "new_fields": options.new_fields,
        "framing": None if options.framing == "none" else options.framing,
    }
    for name, value in given.items():
        if value is not None and name not in row.options:
            takers = " or ".join(one.name for one in FORMATS.values() if name in one.options)
            raise InvalidRequestError(f"{name} is for format {takers}, not for {row.name}")
    if given["framing"] is not None and options.framing not in row.framings:
        takers = " or ".join(one.name for one in FORMATS.values() if options.framing in one.framings)
        raise InvalidRequestError(f"framing {options.framing} is for format {takers}")


def fixed_columns(spec: ValueSpec) -> pa.Schema | None:
    """Columns of the values; None without a schema, where the data says. Raises InvalidRequestError."""
    return _functions(spec.row).fixed_columns(spec)


def with_rest(spec: ValueSpec, columns: pa.Schema) -> pa.Schema:
    """With the column of fields that have none, where they are kept."""
    if spec.does_with_new_fields("rest") and REST not in columns.names:
        return columns.append(pa.field(REST, pa.string()))
    return columns


def decoder(spec: ValueSpec, columns: pa.Schema) -> Decoder:
    """What decodes values into `columns` (of Avro and Protobuf: into those of their own schema)."""
    return _functions(spec.row).decoder(spec, columns)


def learnt(spec: ValueSpec, values: Sequence[bytes | None], source: str) -> ValueSpec:
    """With the schema that a sample of the source's values has. Raises InvalidRequestError where they tell none."""
    return _functions(spec.row).learnt(spec, values, source)
