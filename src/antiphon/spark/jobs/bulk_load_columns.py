"""Which columns of a DataFrame are a table's key and value, and how they become bytes.

Bytes stay as they are and text becomes UTF-8; structs, maps and arrays become JSON; numbers, times and booleans become text
as Spark casts them. A null value deletes the key.
"""

from typing import TYPE_CHECKING, Any, Final

from antiphon.client.given import meant
from antiphon.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDER_COLUMN: Final = "_order"
_JSON: Final = {"ignoreNullFields": "false"}


def load_frame(
    frame: "DataFrame", key: "str | Column", value: "str | Column | None", order_by: "str | Column | None"
) -> "DataFrame":
    """Columns key and value (bytes), and `_order` where rows of one key have an order.

    Each is a column's name, an SQL expression or a Column; without `value` it is a JSON object of all columns but the key.
    Raises InvalidRequestError where one is not there.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as sf

    if frame.isStreaming:
        raise InvalidRequestError(
            'a bulk load takes a batch DataFrame; a stream is written with writeStream.format("antiphon")'
        )
    if value is None:
        others = [name for name in frame.columns if name != key and not (name == order_by != key)]
        if not others:
            raise InvalidRequestError(
                f"there is no column but the key {key!r} to make values of; give value=..."
            )
        value = sf.struct(*[sf.col(quoted(name)) for name in others])
    chosen = {"key": _column(frame, key, "key"), "value": _column(frame, value, "value")}
    if order_by is not None:
        chosen[ORDER_COLUMN] = _column(frame, order_by, "order_by")
    try:
        found = frame.select(*[column.alias(name) for name, column in chosen.items()])
        return found.select(
            _as_bytes(found, "key"),
            _as_bytes(found, "value"),
            *([sf.col(ORDER_COLUMN)] if order_by is not None else []),
        )
    except AnalysisException as error:
        message = next((line for line in str(error).splitlines() if line.strip()), "")
        raise InvalidRequestError(
            f"key, value or order_by cannot be computed from columns {', '.join(frame.columns)}: {message}"
        ) from error


def quoted(name: str) -> str:
    """A column's name as Spark's parser takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _column(frame: "DataFrame", what: "str | Column", use: str) -> Any:
    from pyspark.sql import functions as sf

    if not isinstance(what, str):
        return what
    if what in frame.columns:
        return sf.col(quoted(what))
    if what.isidentifier():
        raise InvalidRequestError(f"{use}: there is no column {what!r}; {meant(what, frame.columns)}")
    return sf.expr(what)


def _as_bytes(frame: "DataFrame", name: str) -> Any:
    from pyspark.sql import functions as sf
    from pyspark.sql import types

    kind = frame.schema[name].dataType
    column = sf.col(name)
    if isinstance(kind, types.StructType | types.MapType | types.ArrayType | types.VariantType):
        column = sf.to_json(column, _JSON)
    elif not isinstance(kind, types.BinaryType | types.StringType):
        column = column.cast("string")
    return column.cast("binary").alias(name)
