"""SQL over the rows of a mirror: which columns they have (`select`), and which of them are there at all (`where`).

DuckDB parses and evaluates it, a batch of rows at a time, in memory, without access to files, the network or extensions.
What may be said is less than SQL: each row by itself, and the same result whenever it is asked for, since an epoch may be
written twice. So the parsed text is looked at before anything is run. Functions are those that DuckDB's own catalog calls
scalar and consistent; there are no aggregates, windows, subqueries, other tables, and nothing of the time or the session.
What is not known here is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.staged import lake_schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS: Final = "rows"  # what the batch is called
MEMORY_MAX: Final = "2GB"
ERROR_CHARS_MAX: Final = 600
REASON_CHARS_MAX: Final = 300
SETTINGS: Final[Mapping[str, str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "memory_limit": MEMORY_MAX,
    "threads": "1",
}
# Classes of expressions that concern one row.
_PER_ROW: Final = frozenset(
    ("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "LAMBDA",
     "OPERATOR", "STAR", "TYPE")
)  # fmt: skip
_WORDS: Final = {"SUBQUERY": "a subquery", "WINDOW": "a window function", "PARAMETER": "a parameter"}
# Their results depend on the time zone, which is always UTC here, and on nothing else that changes.
_ZONED: Final = frozenset(
    ("date_trunc", "datetrunc", "date_part", "datepart", "date_diff", "datediff", "date_sub", "datesub", "strftime",
     "time_bucket", "timezone", "year", "month", "day", "hour", "minute", "second", "week", "quarter", "dayofweek",
     "dayofyear", "dayofmonth", "weekday", "weekofyear", "yearweek", "isodow", "isoyear", "decade", "century", "era",
     "millennium", "epoch", "epoch_ms", "epoch_us", "epoch_ns", "last_day", "dayname", "monthname", "millisecond",
     "microsecond", "julian", "make_timestamptz", "timezone_hour", "timezone_minute", "range", "generate_series", "+", "-")
)  # fmt: skip
# Functions that DuckDB has as macros over such functions.
_MACROS: Final = frozenset(
    ("nullif", "if", "split_part", "fdiv", "days_in_month", "date_add", "array_to_string", "array_append", "array_prepend",
     "array_reverse", "list_append", "list_prepend", "list_reverse", "list_sum", "list_avg", "list_min", "list_max",
     "list_count", "list_first", "list_last", "list_product", "list_any_value", "map_contains_entry", "map_contains_value")
)  # fmt: skip
_IN_EXPRESSIONS: Final = frozenset(("scalar", "macro", "aggregate", "window"))


@dataclass(frozen=True)
class Projection:
    """`select`: what stands between SELECT and FROM; `where`: a condition, or None. Travels to tasks."""

    select: str = "*"
    where: str | None = None


class Projected(NamedTuple):
    """The columns of rows that are kept, which those are (ascending), and why others cannot be evaluated."""

    columns: pa.Table
    kept: Sequence[int]
    bad: list[tuple[int, str]]


@lru_cache(maxsize=64)  # a mirror asks for each epoch
def projected_columns(projection: Projection, rows: pa.Schema, own: tuple[str, ...]) -> pa.Schema:
    """The columns that a projection of such rows has, without the mirror's `own`, which rows have in any case.

    Raises InvalidRequestError, with DuckDB's words where it does not understand or finds no such column.
    """
    with Projector(projection, rows, own) as projector:
        return projector.columns


class Projector:
    """A projection that is checked and ready. Use as a context. Raises InvalidRequestError as `projected_columns`."""

    def __init__(self, projection: Projection, rows: pa.Schema, own: Sequence[str]) -> None:
        self._sql = projection
        self._own = {name.lower() for name in own}
        self._con = _connected()
        try:
            _check_cases(rows)
            self._check(rows)
            found = self._selected(rows.empty_table())
            self.columns = lake_schema(_plain(found).schema)
            self._check_names(self.columns)
        except BaseException:
            self._con.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._con.close()

    def run(self, rows: pa.Table, bad_max: int | None = None) -> Projected:
        """All rows at once; where that fails, halves, until the rows that cannot be evaluated are found."""
        parts: list[pa.Table] = []
        kept: list[int] = []
        bad: list[tuple[int, str]] = []
        waiting = [(0, rows.num_rows)] if rows.num_rows else []
        while waiting and (bad_max is None or len(bad) < bad_max):
            start, count = waiting.pop()
            try:
                columns, where = self._once(rows.slice(start, count))
            except self._row_errors() as error:
                if count == 1:
                    bad.append((start, _first_line(error)))
                else:
                    waiting += [(start + count // 2, count - count // 2), (start, count // 2)]
                continue
            parts.append(columns)
            kept += (where + start).tolist()
        return Projected(pa.concat_tables(parts) if parts else self.columns.empty_table(), kept, bad)

    def _once(self, rows: pa.Table) -> tuple[pa.Table, Any]:
        kept = np.arange(rows.num_rows)
        if self._sql.where is not None:
            mask = pc.fill_null(self._query(rows, _where(self._sql.where)).column(0), False)
            kept = np.flatnonzero(mask.to_numpy())
            rows = rows if len(kept) == rows.num_rows else rows.take(pa.array(kept))
        found = _plain(self._selected(rows))
        return found.cast(self.columns), kept

    def _selected(self, rows: pa.Table) -> pa.Table:
        found = self._query(rows, _select(self._sql.select))
        return found.select(
            [index for index, name in enumerate(found.column_names) if name.lower() not in self._own]
        )

    def _query(self, rows: pa.Table, text: str) -> pa.Table:
        self._con.register(ROWS, rows)
        try:
            return self._con.sql(text).to_arrow_table()
        finally:
            self._con.unregister(ROWS)

    @staticmethod
    def _row_errors() -> tuple[type[Exception], ...]:
        import duckdb

        return duckdb.DataError, duckdb.InvalidInputException, pa.ArrowInvalid

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check(self, rows: pa.Schema) -> None:
        import duckdb

        functions = _functions()
        for option, text in (("where", self._sql.where), ("select", self._sql.select)):
            if text is None:
                continue
            query = _select(text) if option == "select" else _where(text)
            try:
                said = _parsed(self._con, query, option)
                check = _Check(self._con, option, functions, {name.lower() for name in rows.names} | {ROWS})
                check.statement(said)
                found = self._query(rows.empty_table(), query)
                check.columns(said)  # after DuckDB, which says what a wrong name is near to
            except duckdb.Error as error:
                raise InvalidRequestError(
                    f"{option}: {' '.join(str(error).split())[:ERROR_CHARS_MAX]}"
                ) from error
            if option == "select":
                self._check_items(said["node"]["select_list"])
            elif found.num_columns != 1:
                raise InvalidRequestError("where takes one condition")
            elif not pa.types.is_boolean(found.schema.field(0).type):
                raise InvalidRequestError(
                    f"where: it is of type {found.schema.field(0).type}, and has to be true or false"
                )

    def _check_items(self, items: Sequence[Mapping[str, Any]]) -> None:
        for item in items:
            if item["class"] not in {"COLUMN_REF", "STAR"} and not item["alias"]:
                raise InvalidRequestError("select: an expression has no name: give it one with `as NAME`")
            if item["alias"].lower() in self._own:
                raise InvalidRequestError(
                    f"select: {item['alias']} is a column that a mirror needs for itself"
                )

    @staticmethod
    def _check_names(columns: pa.Schema) -> None:
        if not columns.names:
            raise InvalidRequestError("select: no column is left of the values")
        _check_cases(columns)


class _Check:
    """Looks at every expression of a parsed statement."""

    def __init__(
        self, con: "DuckDBPyConnection", option: str, functions: frozenset[str], columns: set[str]
    ) -> None:
        self._con = con
        self._option = option
        self._functions = functions
        self._names = columns

    def statement(self, said: Mapping[str, Any]) -> None:
        """Raises InvalidRequestError for all but `SELECT expressions FROM rows`."""
        node = said["node"]
        table = node.get("from_table") or {}
        plain = (
            node["type"] == "SELECT_NODE"
            and table.get("type") == "BASE_TABLE"
            and str(table.get("table_name")).lower() == ROWS
            and not table.get("schema_name")
            and not table.get("sample")
            and not any(node.get(name) for name in ("modifiers", "where_clause", "group_expressions", "having", "qualify",
                                                    "sample"))
            and not node["cte_map"]["map"]
        )  # fmt: skip
        if not plain:
            self._refuse(
                "more than expressions of one row: no FROM, WHERE, GROUP BY, ORDER BY, DISTINCT, WITH or UNION"
            )
        for one in _expressions(node["select_list"]):
            self._expression(one)

    def _expression(self, one: Mapping[str, Any]) -> None:
        kind = one["class"]
        if kind not in _PER_ROW:
            self._refuse(_WORDS.get(kind, f"an expression of class {kind}"))
        if kind == "FUNCTION":
            name = str(one["function_name"]).lower()
            if (
                one.get("distinct")
                or one.get("filter")
                or one["order_bys"]["orders"]
                or name not in self._functions
            ):
                self._refuse(f"{name}(), which is no function of one row with the same result each time")
            if one.get("schema") or one.get("catalog"):
                self._refuse(f"{name}() of another schema")
        elif kind == "STAR" and (one.get("columns") or one.get("unpacked")):
            self._refuse("COLUMNS(...)")

    def columns(self, said: Mapping[str, Any]) -> None:
        """Raises InvalidRequestError for a name that is no column: DuckDB takes some for functions (`current_date`)."""
        items = said["node"]["select_list"]
        made = {item["alias"].lower() for item in items if item["alias"]}
        for one in _expressions(items):
            if one["class"] == "LAMBDA":
                made |= {
                    _first_name(name) for name in _expressions(one["lhs"]) if name["class"] == "COLUMN_REF"
                }
        known = self._names | {name for name in made - self._names if not self._is_function(name)}
        for one in _expressions(items):
            if one["class"] == "COLUMN_REF" and _first_name(one) not in known:
                self._refuse(f"{one['column_names'][0]}, which is no column")

    def _is_function(self, name: str) -> bool:
        """Does the bare name mean something where there is no column?"""
        import duckdb

        quoted = name.replace('"', '""')
        try:
            self._con.execute(f'SELECT "{quoted}"').fetchall()
        except duckdb.Error:
            return False
        return True

    def _refuse(self, what: str) -> None:
        raise InvalidRequestError(f"{self._option} takes expressions of one row, and has {what}")


def _first_name(column: Mapping[str, Any]) -> str:
    return str(column["column_names"][0]).lower()


def _expressions(said: Any) -> Iterator[Mapping[str, Any]]:
    """Every expression within, itself included."""
    waiting = [said]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            if "class" in one:
                yield one
            waiting += one.values()


def _select(text: str) -> str:
    return f"SELECT {text}\nFROM {ROWS}"  # a remark at the end of the text ends with its line


def _where(text: str) -> str:
    return f"SELECT ({text}\n) AS kept FROM {ROWS}"  # noqa: S608 - what it may say is checked


def _parsed(con: "DuckDBPyConnection", query: str, option: str) -> dict[str, Any]:
    """The one statement that a text is; raises InvalidRequestError in DuckDB's words."""
    ((text,),) = con.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    found = msgspec.json.decode(text)
    if found["error"]:
        words = " ".join(str(found.get("error_message")).split())[:ERROR_CHARS_MAX]
        raise InvalidRequestError(f"{option}: {str(found.get('error_type')).capitalize()} Error: {words}")
    if len(found["statements"]) != 1:
        raise InvalidRequestError(f"{option} takes expressions of one row, and has more than one statement")
    statement: dict[str, Any] = found["statements"][0]
    return statement


@cache
def _functions() -> frozenset[str]:
    """Names whose functions all concern one row, and give the same for the same row."""
    with _connected() as con:
        found = con.execute(
            "SELECT function_name, function_type, stability FROM duckdb_functions()"
        ).fetchall()
    good: set[str] = set()
    other: set[str] = set()
    for name, kind, stability in found:
        if kind not in _IN_EXPRESSIONS:
            continue
        steady = stability == "CONSISTENT" or (name in _ZONED and stability == "CONSISTENT_WITHIN_QUERY")
        fine = (kind == "scalar" and steady) or (kind == "macro" and name in _MACROS)
        (good if fine else other).add(str(name).lower())
    return frozenset(good - other)


def _connected() -> "DuckDBPyConnection":
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            "select and where need DuckDB, here and where Spark's tasks run: pip install 'antiphon[sql]'"
        ) from error
    con = duckdb.connect(":memory:", config=dict(SETTINGS))
    con.execute("SET TimeZone = 'UTC'")
    con.execute("SET lock_configuration = true")
    return con


def _check_cases(columns: pa.Schema) -> None:
    seen: dict[str, str] = {}
    for name in columns.names:
        other = seen.setdefault(name.lower(), name)
        if other != name or columns.names.count(name) > 1:
            raise InvalidRequestError(
                f"select: columns {other} and {name} are the same to SQL: leave one out, or rename it"
            )


def _plain(found: pa.Table) -> pa.Table:
    """Without Arrow's extension types, of which JSON's is a text."""
    columns = []
    for column in found.columns:
        inner = getattr(column.type, "storage_type", None)
        columns.append(column.cast(inner) if inner is not None and pa.types.is_string(inner) else column)
    return pa.Table.from_arrays(columns, names=found.column_names)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:REASON_CHARS_MAX]
