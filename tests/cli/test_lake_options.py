"""`--to-NAME` and `--to-option`: a lake table of the command line, as the mapping of a target."""

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from antiphon.cli.lake_options import takes_lake_targets
from antiphon.lake.targets.kinds import options_of

found: list[Any] = []
app = typer.Typer()


@app.command()
@takes_lake_targets
def give(to_lakes: Any = ()) -> None:
    found[:] = to_lakes


def test_options_of_a_lake_table() -> None:
    words = [
        "--to-iceberg",
        "@prod#a.b",
        "--to-option",
        "partition_by=day(at), bucket(4, k)",
        "--to-option",
        "sort_by=k",
    ]
    words += [
        "--to-option",
        "properties.a.b=c=d",
        "--to-option",
        "properties.e=f",
        "--to-option",
        "catalog.uri=http://x",
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    (target,) = found
    assert target == {
        "kind": "iceberg", "catalog": {"name": "prod", "uri": "http://x"}, "table": "a.b",
        "partition_by": "day(at), bucket(4, k)", "sort_by": "k", "properties": {"a.b": "c=d", "e": "f"},
    }  # fmt: skip
    options_of(target)
    assert CliRunner().invoke(app, ["--to-delta", "/x"]).exit_code == 0
    assert found == ["delta:/x"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to-option", "sort_by=a"], "--to-option is for a lake table: give one of --to-delta"),
        (
            ["--to-delta", "/x", "--to-option", "sort_by=a"],
            "option sort_by is for targets of kind iceberg or parquet",
        ),
        (["--to-delta", "/x", "--to-option", "partition_by=day(a)"], "takes columns only"),
        (["--to-delta", "/x", "--to-option", "partition_by"], "--to-option is NAME=VALUE"),
        (["--to-delta", "/x", "--to-option", "properties=a"], "--to-option is NAME=VALUE"),
        (["--to-delta", "/x", "--to-option", "path=/y"], "--to-option is NAME=VALUE"),
        (
            ["--to-delta", "/x", "--to-option", "partitionby=a"],
            "no option 'partitionby'; did you mean partition_by?",
        ),
    ],
)
def test_wrong_options_of_a_lake_table(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
