"""The formats of values that there are: one row each.

Which options a format takes, what a pipeline's file may say, and the lists in docs and help follow from these rows.
What a format does is in its module, which is loaded when it is used (`spec.Format`).
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class ValueFormat:
    """One format.

    Attributes:
        name: as in the option `format`.
        module: where its functions are.
        options: those of `ValueOptions` that it takes.
        framings: what may stand around a value, besides nothing.
        schema_is_file: may `schema` be the path of a file? Then a pipeline takes it as relative to its own.
        from_table: can the columns be those of the lake table, where no schema is given and there is a table?
        columns: which columns the values become, for the docs.
    """

    name: str
    module: str
    options: tuple[str, ...] = ()
    framings: tuple[str, ...] = ()
    schema_is_file: bool = False
    from_table: bool = False
    columns: str


_ROWS: Final = (
    ValueFormat(name="raw", module="antiphon.lake.values.plain_values", columns="`value`, binary"),
    ValueFormat(name="text", module="antiphon.lake.values.plain_values", columns="`value`, text in UTF-8"),
    ValueFormat(
        name="json",
        module="antiphon.lake.values.json_values",
        options=("schema", "new_fields"),
        from_table=True,
        columns="those of `schema` (`id bigint, tags array<string>`, a StructType or an Arrow schema); without a schema "
        "they are inferred from the oldest and newest 5,000 records. `new_fields` says what happens to fields without a "
        "column: `add` a column (default without a schema), `rest`: keep them as JSON in `_rest` (default with one), "
        "`drop`, `reject` the record. Fields whose values have no common type, or whose names are not possible in a "
        "table, are always kept in `_rest`",
    ),
    ValueFormat(
        name="avro",
        module="antiphon.lake.values.avro_values",
        options=("schema", "writers", "framing"),
        framings=("confluent", "container"),
        schema_is_file=True,
        columns='those of the record `schema` (JSON or a file); `framing="confluent"` for values with a schema id, '
        '`writers={id: schema}` to resolve older ones; `framing="container"` for values that are Avro files of one record; '
        "then the schema may be omitted, because the newest record has it",
    ),
    ValueFormat(
        name="protobuf",
        module="antiphon.lake.values.protobuf_values",
        options=("schema", "message", "framing"),
        framings=("confluent",),
        schema_is_file=True,
        columns="those of `message`, from a file that `protoc --include_imports --descriptor_set_out` made; "
        '`framing="confluent"` too',
    ),
)
FORMATS: Final[dict[str, ValueFormat]] = {row.name: row for row in _ROWS}


def table_of_formats() -> str:
    """The rows as a table for the docs."""
    lines = ["| format | columns |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{one.name}` | {one.columns} |" for one in FORMATS.values())])
