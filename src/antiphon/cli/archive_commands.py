"""`antiphon archive`: old records to Parquet files, what is there, and whether it is still whole."""

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from antiphon.cli.corrupt_options import DeadLettersOption, OnCorruptOption, corrupt_choice
from antiphon.cli.declare import COMMON, CommonOptions, command, group
from antiphon.cli.output import EXIT_FAILED, note, pairs_of, print_json, print_table, progress, usage
from antiphon.cli.spark_support import Master, spark_job
from antiphon.cli.times import duration_ms
from antiphon.records.unreadable import FAIL

if TYPE_CHECKING:
    from antiphon.archive.job.run import ArchiveReport, ArchiveRun

TIMEOUT_MS: Final = 60_000
RUN: Final = "run"

StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        help="NAME=VALUE for the file system, as fsspec calls it; default: ANTIPHON_ARCHIVE_OPTIONS, a JSON object.",
        show_default=False,
    ),
]


class _RunByDefault(TyperGroup):
    """`antiphon archive TOPIC ...` means `antiphon archive run TOPIC ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = [RUN, *args]
        return super().parse_args(ctx, args)


group(
    "archive",
    "Move old records to Parquet files, on any file system; readers find them there.",
    "Example: antiphon archive flights --to s3://bucket/archive --older-than 7d",
    cls=_RunByDefault,
    subcommand_metavar="TOPIC --to URI | COMMAND ...",
)


@command("archive run", "antiphon archive flights --to /mnt/archive --older-than 7d")
def run(
    topic: Annotated[str, typer.Argument(help="Topic or table.")],
    to: Annotated[str, typer.Option("--to", help="Directory: a path, or a URI of any fsspec file system.")],
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Only records older than this: 7d, 36h, 90m, 10s.")
    ] = None,
    keep_bytes: Annotated[
        int | None, typer.Option("--keep-bytes", help="Leave about so many bytes in each shard's log.")
    ] = None,
    up_to: Annotated[
        list[str] | None,
        typer.Option("--up-to", help="Only records before OFFSET, or SHARD=OFFSET (may be repeated)."),
    ] = None,
    trim: Annotated[
        bool, typer.Option("--trim/--no-trim", help="Remove from the logs what was archived.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    on_corrupt: OnCorruptOption = FAIL,
    dead_letters: DeadLettersOption = None,
    storage: StorageOption = None,
    master: Master = None,
    common: CommonOptions = COMMON,
) -> None:
    """Move records to Parquet files, prove the files, then trim the log of every replica.

    Without a limit all that is committed goes. Spark, the Python client and Kafka's consumers read on in the archive.
    """
    from antiphon.archive.job.plan import Limits
    from antiphon.archive.job.run import ArchiveRun, addresses, with_spark

    choice = corrupt_choice(on_corrupt, dead_letters, topic)
    limits = Limits(
        None if older_than is None else duration_ms(older_than, "--older-than"), keep_bytes, _up_to(up_to)
    )
    found = addresses(common.addresses())
    job = ArchiveRun(found, topic, to, limits, options=storage_options(storage), timeout_ms=TIMEOUT_MS)
    if dry_run:
        _print_plan(job, as_json=common.as_json)
        return
    with progress("planning"):
        wanted = job.plan()
    if not any(one.spans for one in wanted):
        report = job.run(lambda _: [], trim=trim)
    else:
        with spark_job("antiphon archive", master) as spark:
            report = job.run(lambda tasks: with_spark(spark, tasks), trim=trim, on_corrupt=choice)
    _print_report(report, dead_letters, as_json=common.as_json)


def _print_plan(job: "ArchiveRun", *, as_json: bool) -> None:
    rows = [
        (one.shard.index, one.log_start, one.begin, one.cut, one.high_watermark, len(one.spans))
        for one in job.plan()
    ]
    print_table(("SHARD", "LOG START", "FROM", "TO", "END", "FILES"), rows, as_json=as_json)


def _print_report(report: "ArchiveReport", letters: str | None, *, as_json: bool) -> None:
    headings = ("SHARD", "ARCHIVED", "NEW FILES", "RECORDS", "BYTES", "LOG STARTS")
    rows = [
        (one.shard, "{}-{}".format(*one.archived), one.files, one.rows, one.size_bytes, one.log_starts)
        for one in report.shards
    ]
    print_table(headings, rows, report.as_dict(), as_json=as_json)
    for one in report.shards:
        for node, reason in one.behind.items():
            note(
                f"node {node} still has the old records of shard {one.shard}; the next run trims them ({reason})"
            )
        if one.lost:
            note(
                f"{one.lost} offsets of shard {one.shard} were removed by retention before they were archived"
            )
        if one.unreadable:
            what = "left out" if letters is None else f"appended to {letters}"
            note(f"{one.unreadable} batches of shard {one.shard} could not be read; they were {what}")
    for uri in report.orphans:
        note(f"removed {uri}, left by a run that did not end")


@command("archive list", "antiphon archive list flights --json")
def list_files(
    topic: Annotated[str | None, typer.Argument(help="Only this topic or table.")] = None,
    common: CommonOptions = COMMON,
) -> None:
    """What is archived, a file a line."""
    from antiphon.archive.job.archived import archived_files

    rows = [
        (
            file.topic,
            file.shard,
            file.start,
            file.end,
            file.rows,
            file.size_bytes,
            _time(file.latest_ms),
            file.uri,
        )
        for file in archived_files(common.addresses(), topic)
    ]
    print_table(
        ("TOPIC", "SHARD", "START", "END", "RECORDS", "BYTES", "LATEST", "FILE"), rows, as_json=common.as_json
    )


@command("archive verify", "antiphon archive verify flights")
def verify(
    topic: Annotated[str | None, typer.Argument(help="Only this topic or table.")] = None,
    storage: StorageOption = None,
    common: CommonOptions = COMMON,
) -> None:
    """Read every archived file whole: its bytes against their checksum, its records against their digest.

    Exit code 1 where a file is missing or damaged. Also told: offsets that are neither in the archive nor in the log.
    """
    from antiphon.archive import files as archive_files
    from antiphon.archive.job.archived import archived_files, gaps
    from antiphon.errors import ArchiveError

    options = storage_options(storage)
    addresses = common.addresses()
    files = archived_files(addresses, topic)
    problems: dict[str, str] = {}
    began_s = time.monotonic()
    for number, file in enumerate(files, 1):
        with progress(f"file {number} of {len(files)}"):
            try:
                archive_files.verify(file, options)
            except ArchiveError as error:
                problems[file.uri] = error.message
    size = sum(file.size_bytes for file in files)
    seconds = round(time.monotonic() - began_s, 3)
    lost = gaps(addresses, files)
    if common.as_json:
        told = {"files": len(files), "bytes": size, "seconds": seconds, "problems": problems, "gaps": lost}
        print_json(told)
    else:
        for gap in lost:
            typer.echo(
                f"{gap['topic']} shard {gap['shard']}: offsets {gap['start']} to {gap['end']} were removed before they were "
                "archived"
            )
        for message in problems.values():
            typer.echo(" ".join(message.split()))
        typer.echo(
            f"{len(files) - len(problems)} of {len(files)} files are whole ({size} bytes, {seconds} s)"
        )
    if problems:
        raise typer.Exit(EXIT_FAILED)


# -- words ----------------------------------------------------------------------------------------------------------


def _up_to(texts: list[str] | None) -> int | dict[int, int] | None:
    if not texts:
        return None
    if len(texts) == 1 and texts[0].isascii() and texts[0].isdigit():
        return int(texts[0])
    found: dict[int, int] = {}
    for text in texts:
        match = re.fullmatch(r"(\d+)=(\d+)", text, re.ASCII)
        if match is None:
            usage(f"--up-to is one OFFSET, or SHARD=OFFSET for each shard that is meant, not {text!r}")
        found[int(match.group(1))] = int(match.group(2))
    return found


def storage_options(texts: list[str] | None) -> dict[str, Any] | None:
    """What `--storage-option` says; None: nothing."""
    return dict(pairs_of(texts, "--storage-option")) or None


def _time(time_ms: int) -> str | None:
    if time_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # a producer's clock may say anything
        return str(time_ms)
