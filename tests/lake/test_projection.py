"""SQL over the rows of a mirror: what it does, row by row, and that it can do nothing else."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from antiphon.errors import BadRecordError, InvalidRequestError
from antiphon.lake.mirror import Epoch, Mirror, Recipe
from antiphon.lake.pipeline import read_pipeline
from antiphon.lake.records import RowShape
from antiphon.lake.targets.target import Target, open_target
from antiphon.lake.values import projection as module
from antiphon.lake.values.decoding import ValueSpec
from antiphon.lake.values.options import ValueOptions
from antiphon.lake.values.projection import Projection, Projector, projected_columns
from antiphon.lake.values.spec import value_spec
from tests.lake.laid_out import options
from tests.lake.test_mirror import TABLE, TOPIC, Frame, change_rows, letters, rows, topic_rows

__all__ = ["letters"]

OWN = ("_key", "_offset")
SCHEMA = pa.schema(
    [
        ("_key", pa.binary()), ("n", pa.int64()), ("s", pa.string()), ("ts", pa.timestamp("us", "UTC")),
        ("d", pa.decimal128(10, 2)), ("parts", pa.list_(pa.int32())), ("st", pa.struct([("x", pa.int64())])),
        ("_offset", pa.int64()),
    ]
)  # fmt: skip


def _row(
    key: bytes | None, n: int | None, s: str | None, ts: datetime | None, parts: Any, x: Any, offset: int
) -> dict[str, Any]:
    return {"_key": key, "n": n, "s": s, "ts": ts, "parts": parts, "st": x and {"x": x[0]}, "_offset": offset}


ROWS = pa.Table.from_pylist(
    [
        _row(b"\xff", 7, "12.5", datetime(2024, 2, 29, 23, 30, tzinfo=UTC), [1, None, 3], [1], 10),
        _row(None, None, "x", datetime(1969, 12, 31, 23, 59, tzinfo=UTC), None, None, 11),
        _row(b"k", -3, None, None, [], [None], 12),
        _row(b"k", 2**62, "0", datetime(2024, 3, 1, tzinfo=UTC), [5], [4], 13),
    ],
    schema=SCHEMA,
)


def run(select: str = "*", where: str | None = None, bad_max: int | None = None) -> module.Projected:
    with Projector(Projection(select, where), SCHEMA, OWN) as projector:
        return projector.run(ROWS, bad_max)


def test_expressions_are_of_each_row() -> None:
    found = run(
        """n // 2 as half, try_cast(s as double) * 0.3048 as metres, upper(coalesce(s, 'none')) as "the text",
        cast(ts as date) as day, date_trunc('month', ts) as month, year(ts) as y, strftime(ts, '%H:%M') as clock,
        case when n > 0 then 'up' else 'down' end as way, [p * 2 for p in parts if p is not null] as twice, st.x,
        split_part(s, '.', 1) as whole, list_sum(parts) as total, nullif(n, 7) as other,
        list_transform(parts, lambda p: p + 1) as more, _offset % 2 = 0 as even, hex(_key) as k -- a remark"""
    )
    assert found.bad == []
    first, second, third, _ = found.columns.to_pylist()
    assert first == {
        "half": 3, "metres": pytest.approx(3.81), "the text": "12.5", "day": date(2024, 2, 29),
        "month": datetime(2024, 2, 1, tzinfo=UTC), "y": 2024, "clock": "23:30", "way": "up", "twice": [2, 6], "x": 1,
        "whole": "12", "total": 4, "other": None, "more": [2, None, 4], "even": True, "k": "FF",
    }  # fmt: skip
    assert (second["metres"], second["the text"], second["day"], second["way"]) == (
        None,
        "X",
        date(1969, 12, 31),
        "down",
    )
    assert (third["the text"], third["day"], third["twice"]) == ("NONE", None, [])


def test_a_condition_chooses_rows() -> None:
    found = run(where="n > 0 or s = 'x' -- a remark")
    assert list(found.kept) == [0, 1, 3], "null is not true"
    assert found.columns.column_names == ["n", "s", "ts", "d", "parts", "st"]
    assert found.columns.to_pylist() == ROWS.drop_columns(list(OWN)).take([0, 1, 3]).to_pylist()
    assert list(run(where="false").kept) == []
    assert run("* exclude (d, parts), n * 2 as twice", "_offset = 10").columns.to_pylist()[0]["twice"] == 14


def test_rows_that_cannot_be_evaluated_are_found() -> None:
    found = run("cast(s as double) as x, n * 4 as m")
    assert list(found.kept) == [0, 2]
    assert [index for index, _ in found.bad] == [1, 3]
    reasons = dict(found.bad)
    assert "Could not convert string 'x' to DOUBLE" in reasons[1]
    assert "Overflow" in reasons[3]
    assert run("cast(s as double) as x", "s <> 'x'").bad == [], "the condition comes first"
    assert len(run("cast(s as double) as x, n * 4 as m", bad_max=1).bad) == 1


HOSTILE = """
* from read_csv('/etc/passwd')
n from rows limit 1 --
n; select 1
n from rows; select 1 as n
distinct n
n order by n
n from rows union all select n
n from rows, rows as other
n from rows group by n
(select 1) as x
(select max(n) from rows) as x
n in (select 1) as x
exists(select 1) as x
(select content from read_text('/etc/passwd')) as x
sum(n) as x
count(*) as x
list(n) as x
row_number() over () as x
lag(n) over (order by n) as x
read_text('/etc/passwd') as x
read_csv('/etc/passwd') as x
glob('/*') as x
query('select 1') as x
unnest([1, 2]) as x
unnest(parts) as x
random() as x
uuid() as x
gen_random_uuid() as x
now() as x
today() as x
get_current_timestamp() as x
current_date as x
current_timestamp as x
localtimestamp as x
current_time as x
current_user as x
session_user as x
current_schema as x
current_catalog as x
current_setting('memory_limit') as x
getvariable('x') as x
getenv('HOME') as x
nextval('s') as x
txid_current() as x
current_query() as x
age(ts) as x
version() over () as x
ago(interval 1 day) as x
pg_sleep(1) as x
main.upper(s) as x
system.main.upper(s) as x
write_log('x') as x
sleep_ms(1) as x
error('x') as x
$1 as x
? as x
columns('.*')
columns(c -> c <> 'n')
rows.nope as x
nope as x
1 as current_date, current_date as x
list_transform(parts, lambda current_date: current_date) as y, current_date as x
list_transform(parts, lambda "current_user": 1) as y, [1 for user in parts] as z, current_user as x
nope(n) as x
n as
n n n
'unclosed
/* unclosed
""".strip().splitlines()


@pytest.mark.parametrize("select", HOSTILE)
def test_all_but_expressions_of_one_row_is_refused(select: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        projected_columns(Projection(select), SCHEMA, OWN)
    assert caught.value.message.startswith("select")
    if " as x" in select:
        with pytest.raises(InvalidRequestError, match=r"^where"):
            projected_columns(Projection("*", f"({select.removesuffix(' as x')}) is not null"), SCHEMA, OWN)


@pytest.mark.parametrize(
    ("select", "where", "words"),
    [
        ("n * 2", None, "select: an expression has no name: give it one with `as NAME`"),
        ("n as _key", None, "select: _key is a column that a mirror needs for itself"),
        ("n as _OFFSET", None, "select: _OFFSET is a column that a mirror needs for itself"),
        ("n as a, s as A", None, "select: columns a and A are the same to SQL"),
        ("_key", None, "select: no column is left of the values"),
        (
            "nme",
            None,
            'select: Binder Error: Referenced column "nme" not found in FROM clause! Candidate bindings: "n"',
        ),
        ("upper(n as x", None, "select: Parser Error: syntax error at or near"),
        ("interval 1 day as x", None, "column x: type .* cannot be a column of a lake table"),
        ("*", "n", "where: it is of type int64, and has to be true or false"),
        ("*", "true), (true", "where takes one condition"),
        ("*", "n >", "where: Parser Error"),
        ("*", "true) as kept from rows --", "where: Parser Error"),
        (
            "*",
            "sum(n) > 1",
            r"where takes expressions of one row, and has sum\(\), which is no function of one row",
        ),
    ],
)
def test_what_is_refused_says_why(select: str, where: str | None, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        projected_columns(Projection(select, where), SCHEMA, OWN)


def test_nothing_that_depends_on_session_or_time_is_a_column() -> None:
    """Names that DuckDB takes for functions although they are written like columns."""
    con = duckdb.connect(":memory:")
    names = {
        name
        for (name,) in con.execute("select distinct function_name from duckdb_functions()").fetchall()
        if name.isidentifier()
    }
    con.close()
    with Projector(Projection(), SCHEMA, OWN) as projector:
        con = projector._con
        con.register("rows", ROWS)
        taken = []
        for name in sorted(names):
            try:
                con.sql(f"select {name} as x from rows").to_arrow_table()
            except duckdb.Error:
                continue
            taken.append(name)
    assert "current_date" in taken
    for name in [*taken, "user", "current_role", "localtime"]:
        with pytest.raises(InvalidRequestError):
            projected_columns(Projection(f"{name} as x"), SCHEMA, OWN)


def test_files_cannot_be_reached_even_past_the_checks(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with Projector(Projection(), SCHEMA, OWN) as projector:
        for text in (
            f"select * from read_csv('{secret}')", f"select * from '{secret}'", f"copy (select 1) to '{tmp_path}/out.csv'",
            f"attach '{tmp_path}/x.db'", "install spatial", "load spatial", "set enable_external_access = true",
            "set memory_limit = '10GB'", "select * from ROWS_OF_THIS_PROCESS",
        ):  # fmt: skip
            ROWS_OF_THIS_PROCESS = ROWS  # noqa: N806, F841 - what DuckDB would find by itself
            if "PROCESS" in text:
                continue
            with pytest.raises(duckdb.Error):
                projector._con.execute(text)
    assert [file.name for file in tmp_path.iterdir()] == ["secret.csv"]


def test_columns_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="columns a and A are the same to SQL"):
        projected_columns(Projection("*"), pa.schema([("a", pa.int32()), ("A", pa.int32())]), ())


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(
        InvalidRequestError, match=r"select and where need DuckDB, .* pip install 'antiphon\[sql\]'"
    ):
        projected_columns(Projection("n as only_here"), SCHEMA, OWN)


def test_nothing_of_it_is_loaded_before_it_is_needed() -> None:
    code = "import antiphon.lake.topic_mirror, antiphon.lake.pipeline, sys; sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- options ----------------------------------------------------------------------------------------------------------


def test_columns_have_to_be_known() -> None:
    for given in (
        ValueOptions("json", select="n"),
        ValueOptions("json", "n bigint", new_fields="add", where="n > 0"),
    ):
        with pytest.raises(
            InvalidRequestError, match="select and where need columns that are known: give schema"
        ):
            value_spec(given)
    assert value_spec(ValueOptions("json", "n bigint", where="n > 0")).projection == Projection("*", "n > 0")
    assert value_spec(ValueOptions("text", select="upper(value) as v")).projection == Projection(
        "upper(value) as v"
    )


PIPELINE = """
servers = "127.0.0.1:7400"
[source]
topic = "flights"
[target]
kind = "delta"
path = "lake"
partition_by = ["day"]
[value]
format = "json"
schema = "alt bigint"
select = "SELECT"
where = "alt is not null"
"""


def test_a_pipelines_file_is_checked_without_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE.replace("SELECT", "alt * 0.3048 as m, cast(_timestamp as date) as day"))
    (job,) = read_pipeline(file)
    assert job.options["where"] == "alt is not null"
    assert job.target["partition_by"] == ["day"]
    for wrong, words in (
        ("alt * as m", r"\[value\] select: Parser Error"),
        ("alt * 2 as _offset", r"\[value\] select: _offset is a column that a mirror needs"),
        ("_version", r"\[value\] select: Binder Error: Referenced column"),
    ):
        file.write_text(PIPELINE.replace("SELECT", wrong))
        with pytest.raises(InvalidRequestError, match=words):
            read_pipeline(file)
    for key, words in (("partition_by = 7", "target.partition_by has to be a list, not 7"),
                       ('sort_by = ["x"]', "sort_by is for targets of kind iceberg or parquet, not delta"),
                       ('partition_by = ["day(x)"]', "takes columns only")):  # fmt: skip
        file.write_text(PIPELINE.replace("SELECT", "alt as m").replace('partition_by = ["day"]', key))
        with pytest.raises(InvalidRequestError, match=words):
            read_pipeline(file)


# -- mirrors ----------------------------------------------------------------------------------------------------------

COLUMNS = pa.schema([("n", pa.int64()), ("s", pa.string())])


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made: list[Target] = []

    def again(source: Any, select: str, where: str | None, dead: str | None = "dead", **more: Any) -> Mirror:
        made.append(open_target(options(request.param, tmp_path, **more)))
        spec = ValueSpec("json", COLUMNS, new_fields="rest", projection=Projection(select, where))
        found = Mirror(None, source, made[-1], Recipe(RowShape(source.is_table), spec, dead), [0, 1])
        found.recover()
        return found

    yield again
    for target in made:
        target.close()


def test_a_topic_with_a_projection(opened: Any, letters: Any) -> None:
    batch = topic_rows(
        [(0, 0, b"a", b'{"n": 1, "s": "10"}'), (0, 1, b"b", b'{"n": 2, "s": "no"}'), (0, 2, b"c", b'{"n": -1, "s": "no"}'),
         (0, 3, b"d", b"poison"), (0, 4, b"e", None), (0, 5, b"f", b'{"n": 5, "s": "7", "new": 1}')]
    )  # fmt: skip
    one = opened(TOPIC, "cast(s as int) + n as sum, _offset * 2 as twice", "n is null or n > 0")
    one.apply(Frame(batch), Epoch({}, {0: 6}))
    found = sorted(rows(one), key=lambda row: row["_offset"])
    assert [(row["_key"], row["sum"], row["twice"], row["_offset"]) for row in found] == [
        (b"a", 11, 0, 0), (b"e", None, 8, 4), (b"f", 12, 10, 5),
    ]  # fmt: skip
    assert set(found[0]) == {"_key", "sum", "twice", "_partition", "_offset", "_timestamp"}
    assert letters.all == [(b"poison", 3), (b'{"n": 2, "s": "no"}', 1)]
    assert one.positions == {0: 6}
    again = opened(TOPIC, "cast(s as int) + n as sum, _offset * 2 as twice", "n is null or n > 0")
    again.apply(Frame(batch), Epoch({}, {0: 6}))
    assert len(rows(again)) == 3
    with pytest.raises(
        BadRecordError, match=r"flights shard 0 offset 7 cannot be decoded .* Could not convert string 'no'"
    ):
        opened(TOPIC, "cast(s as int) as sum", None, None).apply(
            Frame(topic_rows([(0, 6, b"a", b'{"s": "1"}'), (0, 7, b"a", b'{"s": "no"}')])),
            Epoch({0: 6}, {0: 8}),
        )
    assert len(rows(again)) == 3


def test_rows_of_a_topic_by_a_column_that_is_made_for_it(opened: Any, letters: Any) -> None:
    one = opened(TOPIC, "n, n % 2 as p, s", None, partition_by=["p"])
    batch = topic_rows([(0, n, b"k%d" % n, b'{"n": %d}' % n) for n in range(6)])
    one.apply(Frame(batch), Epoch({}, {0: 6}))
    assert len(one._target.files()) == 2
    again = opened(TOPIC, "n, n % 2 as p, s", None, partition_by=["p"])
    again.apply(Frame(batch), Epoch({}, {0: 6}))
    assert Counter(row["_offset"] for row in rows(again)) == Counter(range(6))


def test_a_table_has_the_rows_for_which_the_condition_holds(tmp_path: Path, letters: Any) -> None:
    def mirror() -> Mirror:
        spec = ValueSpec(
            "json", COLUMNS, new_fields="rest", projection=Projection("cast(s as int) as m", "n > 0")
        )
        found = Mirror(
            None,
            TABLE,
            open_target(options("delta", tmp_path)),
            Recipe(RowShape(is_table=True), spec, "dead"),
            [0],
        )
        found.recover()
        return found

    def now() -> dict[bytes, int]:
        return {row["_key"]: row["m"] for row in rows(mirror())}

    snapshot = [
        (0, 0, key, b'{"n": %d, "s": "%d"}' % (n, n), 1)
        for key, n in ((b"a", 1), (b"b", 2), (b"c", -3), (b"d", 4))
    ]
    mirror().load(Frame(change_rows([*snapshot, (0, 0, b"e", b'{"n": 1, "s": "no"}', 1)])), {0: 5})
    assert now() == {b"a": 1, b"b": 2, b"d": 4}
    changes = [
        (0, 5, b"a", b'{"n": -1, "s": "no"}', 2), (0, 6, b"c", b'{"n": 3, "s": "3"}', 2), (0, 7, b"d", None, 1),
        (0, 8, b"b", b'{"n": 2, "s": "no"}', 2), (0, 9, b"f", b'{"n": 0, "s": "no"}', 1),
        (0, 10, b"e", b'{"n": 1, "s": "6"}', 2),
    ]  # fmt: skip
    mirror().apply(Frame(change_rows(changes)), Epoch({0: 5}, {0: 11}))
    assert now() == {b"c": 3, b"e": 6}, "a is no longer meant, b cannot be evaluated, d was deleted"
    assert [value for value, _ in letters.all] == [b'{"n": 1, "s": "no"}', b'{"n": 2, "s": "no"}']
    mirror().apply(Frame(change_rows(changes)), Epoch({0: 5}, {0: 11}))
    assert now() == {b"c": 3, b"e": 6}
