"""`antiphon shard split`: one shard of a table becomes two, with readers and writers at work."""

from typing import Annotated

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.output import print_json, progress
from antiphon.model.metadata import KeyRanges


@command("shard split", "antiphon shard split aircraft 0")
def shard_split(
    table: Annotated[str, typer.Argument(help="Table.")],
    shard: Annotated[int, typer.Argument(help="Shard number, from 0.")],
    at: Annotated[
        int, typer.Option(help="First key hash that goes to the new shard; -1: the upper half goes there.")
    ] = -1,
    timeout_s: Annotated[float, typer.Option(help="How long to wait for the copying, in seconds.")] = 3600.0,
    common: CommonOptions = COMMON,
) -> None:
    """Split a shard of a table in two, while it is read and written."""
    with common.connect() as db:
        with progress(f"splitting {table}/{shard}"):
            db.split_shard(table, shard, at=None if at < 0 else at, timeout_s=timeout_s)
        found = next(topic for topic in db.metadata().topics if topic.name == table)
    ranges = KeyRanges(found.shards)
    if common.as_json:
        print_json([{"shard": part.index, "hashes": list(ranges.range_of(part))} for part in found.shards])
        return
    for part in found.shards:
        first, last = ranges.range_of(part)
        typer.echo(f"{table}/{part.index} holds key hashes {first} to {last}")
