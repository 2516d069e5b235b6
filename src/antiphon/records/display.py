"""What people see of records and rows: one line each, or a table of HTML. Keys and values are strangers': all is escaped."""

from collections.abc import Sequence
from typing import Any, Final

BYTES_SHOWN: Final = 60
TEXT_SHOWN: Final = 200  # characters of an object that a codec made


def shown(value: Any) -> str:
    """A key or value in one line, cut where it is long."""
    if isinstance(value, bytes) and len(value) > BYTES_SHOWN:
        return f"{value[:BYTES_SHOWN]!r}... ({len(value):,} bytes)"
    text = repr(value)
    if len(text) > TEXT_SHOWN:
        text = f"{text[:TEXT_SHOWN]}... ({len(text):,} characters)"
    return text if text.isprintable() else ascii(text)[1:-1]


def line(name: str, fields: dict[str, Any]) -> str:
    """`Name(field=value, ...)`."""
    return f"{name}({', '.join(f'{field}={shown(value)}' for field, value in fields.items())})"


def html_table(rows: Sequence[dict[str, Any]], title: str = "") -> str:
    """A table whose cells are what `shown` makes of the values; all rows have the fields of the first."""
    from html import escape

    headings = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
    lines = ["".join(f"<td>{escape(shown(value))}</td>" for value in row.values()) for row in rows]
    body = "".join(f"<tr>{cells}</tr>" for cells in lines)
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table>"
