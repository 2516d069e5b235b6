"""Iceberg tables in catalogs of pyiceberg's configuration, and in one behind the REST protocol."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.pipeline import read_pipeline
from antiphon.lake.targets.target import MarkStep, Target, open_target
from tests.lake.rest_catalog import TOKEN, RestCatalog, serve
from tests.lake.test_targets import SCHEMA, changes, keys, numbered, stage

PIPELINE = """
servers = "127.0.0.1:7400"
[source]
topic = "flights"
[target]
kind = "iceberg"
table = "air.flights"
"""


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalog `prod` in pyiceberg's configuration: its type in a file, its address in the environment."""
    folder = tmp_path / "warehouse"
    folder.mkdir()
    home = tmp_path / "conf"
    home.mkdir()
    (home / ".pyiceberg.yaml").write_text(
        f"catalog:\n  prod:\n    type: sql\n    warehouse: file://{folder}\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(home))
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", f"sqlite:///{folder}/own.db")
    return folder


WAYS: list[Any] = [
    "iceberg:@prod#air.flights",
    {"kind": "iceberg", "catalog": "prod", "table": "air.flights"},
    {"kind": "iceberg", "catalog": {"name": "prod"}, "table": "air.flights"},
]


@pytest.mark.parametrize("way", WAYS, ids=["place", "name", "properties"])
def test_a_catalog_of_pyicebergs_configuration(configured: Path, way: Any) -> None:
    from pyiceberg.catalog import load_catalog

    target = open_target(way)
    assert target.name == "iceberg @prod#air.flights"
    target.create(SCHEMA)
    assert target.append(stage(target, numbered(0, 2)), {"q/0": MarkStep(None, 2)})
    again = open_target(WAYS[0])
    assert not again.append(stage(again, numbered(0, 2)), {"q/0": MarkStep(None, 2)})
    assert keys(again) == [b"k0", b"k1"]
    assert (configured / "own.db").exists()
    assert not (configured / "catalog.db").exists()
    uri = f"sqlite:///{configured}/own.db"
    theirs = load_catalog("prod", type="sql", uri=uri, warehouse=str(configured))
    assert theirs.load_table("air.flights").scan().to_arrow().num_rows == 2, "others find it by the same name"
    for one in (target, again, theirs):
        one.close()


def test_properties_go_before_those_of_the_configuration(configured: Path, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/other.db"
    target = open_target({**WAYS[2], "catalog": {"name": "prod", "uri": uri}})
    target.create(SCHEMA)
    assert (tmp_path / "other.db").exists()
    assert not (configured / "own.db").exists()
    target.close()


@pytest.mark.usefixtures("configured")
def test_a_catalog_that_is_not_configured() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"has no catalog 'test'; it has prod: .*PYICEBERG_CATALOG__TEST__URI"
    ):
        open_target("iceberg:@test#air.flights")


@pytest.mark.parametrize("catalog", ['catalog = "prod"', 'catalog = { name = "prod" }'])
def test_a_pipeline_names_a_catalog(tmp_path: Path, catalog: str) -> None:
    file = tmp_path / "one.toml"
    file.write_text(PIPELINE + catalog)
    (job,) = read_pipeline(file)
    assert job.target["catalog"] in ("prod", {"name": "prod"})
    file.write_text(PIPELINE)
    with pytest.raises(InvalidRequestError, match=r"a path, catalog = 'NAME' or \[target.catalog\]"):
        read_pipeline(file)


# -- behind the REST protocol ---------------------------------------------------------------------------------------


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestCatalog]:
    with serve(tmp_path) as found:
        yield found


def opened(catalog: RestCatalog) -> Target:
    properties = {"type": "rest", "uri": catalog.uri, "token": TOKEN}
    return open_target({"kind": "iceberg", "table": "air.flights", "catalog": properties})


def test_a_table_in_a_catalog_behind_rest(rest: RestCatalog) -> None:
    target, other = opened(rest), opened(rest)
    assert target.schema() is None
    target.create(SCHEMA)
    step = {"q/0": MarkStep(None, 2)}
    assert other.schema() == SCHEMA
    assert other.data == target.data, "files go to where the catalog has put the table since"
    files = stage(other, numbered(5, 1))
    assert target.append(stage(target, numbered(0, 2)), step)
    assert not opened(rest).append(stage(target, numbered(0, 2)), step)
    with pytest.raises(TargetConflictError, match="another writer has moved q/0 to 2"):
        other.append(files, {"q/0": MarkStep(None, 3)})
    target.add_columns([pa.field("more", pa.int32())])
    target.widen_columns([pa.field("more", pa.int64())])
    assert other.merge(changes((b"k0", 9, None), (b"new", 3, "n")), {"q/0": MarkStep(2, 3)})
    assert keys(opened(rest)) == [b"k1", b"new"]
    assert opened(rest).compact(1 << 20).added == 1
    assert keys(opened(rest)) == [b"k1", b"new"]


@pytest.mark.parametrize("change", ["append", "merge", "marks"])
def test_a_commit_whose_answer_is_lost_is_looked_for(rest: RestCatalog, change: str) -> None:
    target = opened(rest)
    target.create(SCHEMA)
    rest.unanswered = 1
    before = rest.commits
    step = {"q/0": MarkStep(None, 2)}
    if change == "merge":
        assert target.merge(changes((b"k0", 1, "x")), step)
    else:
        assert target.append(stage(target, numbered(0, 1)) if change == "append" else [], step)
    assert rest.commits == before + 1, "it was there, and was not made again"
    assert keys(opened(rest)) == ([] if change == "marks" else [b"k0"])
    assert opened(rest).mark("q/0") == 2


def test_columns_are_added_once_where_the_answer_is_lost(rest: RestCatalog) -> None:
    target = opened(rest)
    target.create(SCHEMA)
    rest.unanswered = 1
    target.add_columns([pa.field("more", pa.int32())])
    assert (opened(rest).schema() or SCHEMA).names == [*SCHEMA.names, "more"]
