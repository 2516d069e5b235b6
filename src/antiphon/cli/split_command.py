"""`antiphon shard split`: one shard of a table becomes two, with readers and writers at work."""

from typing import Annotated

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.output import progress, say
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
    held = {part.index: ranges.range_of(part) for part in found.shards}
    text = "\n".join(f"{table}/{i} holds key hashes {first} to {last}" for i, (first, last) in held.items())
    told = [{"shard": i, "hashes": list(hashes)} for i, hashes in held.items()]
    say(text, told, as_json=common.as_json)
