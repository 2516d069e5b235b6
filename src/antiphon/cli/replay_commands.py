"""`antiphon replay`: a table, or any fold of a log, as of an offset or a time. `antiphon load`: files into a table."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from antiphon.cli.corrupt_options import DeadLettersOption, OnCorruptOption, corrupt_choice
from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.lake_options import FLAGS, takes_lake_targets
from antiphon.cli.output import EXIT_FAILED, print_json, print_table, progress, usage
from antiphon.cli.spark_support import Master, spark_job
from antiphon.cli.topic_commands import parse_config
from antiphon.errors import UnknownTopicError
from antiphon.records.unreadable import FAIL
from antiphon.tools.replay_inputs import FORMATS, LAST_PER_KEY, guess_format, load_fold, read_files

if TYPE_CHECKING:
    from antiphon.spark.jobs.bulk_load_job import BulkLoaded
    from antiphon.spark.jobs.replay_compare import Compared
    from antiphon.spark.jobs.replay_output import Replayed

TIMEOUT_MS: Final = 120_000

AsOfOffset = Annotated[
    str | None,
    typer.Option(help='Exclusive end of each shard, {"0": 17, "1": 4}; a number where there is one shard.'),
]
AsOfTime = Annotated[
    str | None,
    typer.Option(help="ISO 8601, UTC unless it says otherwise; what happened then belongs to it."),
]
Fold = Annotated[
    str | None,
    typer.Option(
        help="last-per-key, or MODULE:FUNCTION with fold(state, record) -> state. [a table's state]"
    ),
]
RateOption = Annotated[
    int | None,
    typer.Option(help="At most so many bytes a second; the cluster sets a rate in any case.", min=1),
]


# -- replay ---------------------------------------------------------------------------------------------------------


@command("replay", "antiphon replay aircraft --as-of-time 2026-03-01T12:00:00Z --to-table aircraft-march")
@takes_lake_targets
def replay(
    name: Annotated[str, typer.Argument(help="Table or topic.")],
    as_of_offset: AsOfOffset = None,
    as_of_time: AsOfTime = None,
    fold: Fold = None,
    by: Annotated[str, typer.Option(help="key or shard: what the fold keeps a state for.")] = "key",
    to_table: Annotated[str | None, typer.Option(help="A new table.")] = None,
    to_lakes: Sequence[str | dict[str, Any]] = (),
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare the table with the fold of its log instead.")
    ] = False,
    job_name: Annotated[
        str | None, typer.Option("--name", help="Name of this replay; default: made of source and target.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Complete a killed replay of that name.")] = False,
    shards: Annotated[int | None, typer.Option(help="Of the new table. [as the source]", min=1)] = None,
    replicas: Annotated[int | None, typer.Option(help="Of the new table. [as the source]", min=1)] = None,
    config: Annotated[list[str] | None, typer.Option("--config", help="k=v for the new table.")] = None,
    rate: RateOption = None,
    on_corrupt: OnCorruptOption = FAIL,
    dead_letters: DeadLettersOption = None,
    master: Master = None,
    common: CommonOptions = COMMON,
) -> None:
    """Bring back a table's state, or any fold of a log, as of an offset or a time, in a new table or a lake table.

    Every row arrives once, also when the command is killed and run again with --resume; at the end what arrived is
    compared with what was written.
    """
    _check_replay(name, compare=compare, fold=fold, by=by, targets=len(to_lakes) + (to_table is not None))
    choice = corrupt_choice(on_corrupt, dead_letters, name)
    function = None if fold in {None, LAST_PER_KEY} else load_fold(str(fold))
    found = common.addresses()
    with progress(f"looking at {name}"):
        time_ms, is_table = _check_there(found, name, to_table, as_of_offset, as_of_time)
    if is_table and choice != FAIL:
        usage(f"--on-corrupt is for topics; {name} is a table, whose batches are the nodes' own")
    if compare:
        _compare(found, name, master, as_json=common.as_json)
        return
    options: dict[str, Any] = {
        "as_of_offset": as_of_offset,
        "as_of_timestamp_ms": time_ms,
        "to_table": to_table,
        "to_lake": to_lakes[0] if to_lakes else None,
        "name": job_name,
        "resume": resume,
        "shards": shards,
        "replicas": replicas,
        "config": parse_config(config) if config else None,
        "rate": rate,
    }
    with spark_job(f"antiphon replay {name}", master) as spark:
        from antiphon.spark import jobs

        if fold is None and is_table:
            done = jobs.replay_table(spark, found, name, **options)
        else:
            options |= {"fold": function or LAST_PER_KEY, "by": by, "on_corrupt": choice}
            done = jobs.fold_topic(spark, found, name, **options)
    _print_replayed(done, as_json=common.as_json)


def _check_replay(name: str, *, compare: bool, fold: str | None, by: str, targets: int) -> None:
    if by not in {"key", "shard"}:
        usage(f"--by is key or shard, not {by!r}")
    if compare and (targets or fold is not None):
        usage("--compare compares a table with its own log; it goes with no fold and no target")
    if not compare and targets != 1:
        usage(
            f"give one of {', '.join(('--to-table', *FLAGS[:-1]))} and {FLAGS[-1]} to say where {name} is to be "
            "replayed to, or --compare"
        )


def _check_there(
    servers: str, name: str, to_table: str | None, as_of_offset: str | None, as_of_time: str | None
) -> tuple[int | None, bool]:
    """Find out before Spark is started whether there is what is asked for; the time in ms, and whether it is a table."""
    from antiphon.client.blocking import Cluster
    from antiphon.model.metadata import Kind
    from antiphon.spark.jobs.replay_cut import find_cut, parse_time
    from antiphon.spark.jobs.replay_job import any_topic
    from antiphon.spark.option_values import parse_servers

    time_ms = None if as_of_time is None else parse_time(as_of_time)
    with Cluster(parse_servers(servers), TIMEOUT_MS) as cluster:
        topic = any_topic(cluster, name)
        find_cut(cluster, topic, as_of_offset, time_ms)
        if to_table is not None:
            with suppress(UnknownTopicError):  # it is made
                cluster.topic(to_table, table=True)
        return time_ms, topic.kind is Kind.TABLE


def _print_replayed(done: "Replayed", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "source": done.source,
                "target": done.target,
                "name": done.name,
                "ends": {str(shard): end for shard, end in done.ends.items()},
                "rows": done.digest.rows,
                "digest": f"{done.digest.total:016x}",
                "superseded": done.superseded,
                "duplicates": done.duplicates,
                "skipped": done.skipped,
                "seconds": round(done.seconds, 3),
                "was_done": done.was_done,
            }
        )
        return
    ends = ", ".join(f"{shard}: {end}" for shard, end in done.ends.items())
    how = "was replayed before" if done.was_done else "replayed"
    typer.echo(f"{done.source} {how} to {done.target}, up to offsets {ends}, in {done.seconds:.1f} s")
    typer.echo(f"  {done.digest}; the target was read back and holds the same")
    if done.superseded:
        typer.echo(f"  {done.superseded:,} rows had the key of another one, which took their place")


def _compare(servers: str, name: str, master: str | None, *, as_json: bool) -> None:
    with spark_job(f"antiphon compare {name}", master) as spark:
        from antiphon.spark import jobs

        found: Compared = jobs.compare_table(spark, servers, name)
    if as_json:
        print_json(
            found._asdict()
            | {"agrees": found.agrees, "examples": [example._asdict() for example in found.examples]}
        )
    elif found.agrees:
        moving = f"; {found.moving:,} keys changed meanwhile and are not judged" if found.moving else ""
        typer.echo(f"{name} is what its log says: {found.rows:,} rows{moving}")
    else:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in found.differences.items())
        typer.echo(
            f"{name} is not what its log says: {counts}; {found.rows:,} rows, {found.log_rows:,} by the log"
        )
        rows = [
            (
                example.key.decode("utf-8", "backslashreplace"),
                example.kind,
                _short(example.table_value),
                _short(example.log_value),
                example.table_version,
                example.log_version,
            )
            for example in found.examples
        ]
        headings = ("KEY", "KIND", "IN TABLE", "BY LOG", "VERSION", "VERSION BY LOG")
        print_table(headings, rows, as_json=False)
    if not found.agrees:
        raise typer.Exit(EXIT_FAILED)


def _short(value: bytes | None) -> str | None:
    if value is None:
        return None
    text = value.decode("utf-8", "backslashreplace")
    return text if len(text) <= 40 else text[:37] + "..."


# -- load -----------------------------------------------------------------------------------------------------------


@command("load", "antiphon load aircraft --from aircraft.parquet --key tailnum --txn-id first")
def load(
    table: Annotated[str, typer.Argument(help="A table that exists.")],
    source: Annotated[str, typer.Option("--from", help="File, folder or URL that Spark can read.")],
    key: Annotated[str, typer.Option("--key", help="Column, or SQL expression.")],
    value: Annotated[
        str | None,
        typer.Option("--value", help="Column, or SQL expression. [a JSON object of all other columns]"),
    ] = None,
    order_by: Annotated[
        str | None, typer.Option("--order-by", help="Of rows with one key, the last by this column is kept.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}. [by the name]"),
    ] = None,
    txn_id: Annotated[
        str | None,
        typer.Option("--txn-id", help="A name for this load: run again under it, it writes what is missing."),
    ] = None,
    rate: RateOption = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the table back and compare; it has to be empty before.")
    ] = False,
    master: Master = None,
    common: CommonOptions = COMMON,
) -> None:
    """Load files into a table, at the rate that the cluster sets, each row once.

    CSV files have their names in the first line; all their columns are text. Nothing is written when a row has no key.
    """
    kind = format_ or guess_format(source)
    if kind not in FORMATS:
        usage(f"--format is {', '.join(FORMATS)}, not {kind!r}")
    found = common.addresses()
    with progress(f"looking at {table}"):
        _check_table(found, table)
    with spark_job(f"antiphon load {table}", master) as spark:
        from antiphon.spark import jobs

        frame = read_files(spark, source, kind)
        done = jobs.bulk_load(
            frame,
            found,
            table,
            key=key,
            value=value,
            order_by=order_by,
            txn_id=txn_id,
            rate=rate,
            verify=verify,
        )
    _print_loaded(done, as_json=common.as_json)


def _check_table(servers: str, table: str) -> None:
    from antiphon.client.blocking import Cluster
    from antiphon.spark.option_values import parse_servers

    with Cluster(parse_servers(servers), TIMEOUT_MS) as cluster:
        cluster.topic(table, table=True)


def _print_loaded(done: "BulkLoaded", *, as_json: bool) -> None:
    if as_json:
        found = done._asdict()
        found["digest"] = f"{done.digest.total:016x}"
        found["rows_per_s"] = round(done.rows_per_s)
        print_json(found)
        return
    typer.echo(
        f"Loaded {done.rows:,} rows ({done.bytes / 1e6:,.1f} MB) into {done.table} in {done.seconds:.1f} s: "
        f"{done.rows_per_s:,.0f} rows/s by {done.tasks} tasks"
    )
    notes = [
        (done.deletes, "keys were deleted"),
        (done.superseded, "rows had the key of a later one"),
        (done.duplicates, "requests had been carried out before"),
        (done.skipped, "tasks were done by an earlier run"),
        (done.overloaded, "times a node had no room"),
    ]
    said = [f"{count:,} {what}" for count, what in notes if count]
    if done.verified:
        said.append("the table was read back and holds these rows")
    if said:
        typer.echo("  " + "; ".join(said))
