"""`antiphon consume`: records of a topic, or of a table's log, to lines of stdout."""

import sys
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Annotated

import typer

from antiphon.cli.corrupt_options import DeadLettersOption, OnCorruptOption, corrupt_choice
from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.output import note, usage
from antiphon.cli.record_lines import RecordLines
from antiphon.cli.times import SinceOption, since_ms
from antiphon.client.log_reader import ISOLATIONS
from antiphon.records.decode import Record
from antiphon.records.unreadable import FAIL
from antiphon.tools.record_source import PassedOver, RecordSource, Span

ShardOption = Annotated[
    int | None,
    typer.Option(help="Only this shard (default: all, one after the other; with --follow as they come)."),
]
StartOption = Annotated[
    int | None,
    typer.Option(
        "--from",
        help="First offset in each shard; -1: only what comes from now on; -2, the default: the first that is there.",
    ),
]
EndOption = Annotated[
    int | None,
    typer.Option(
        "--to",
        help="Stop before this offset (default: the end as it is now); waits for records that are not there yet.",
    ),
]
FollowOption = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Wait for new records; of several shards each line names its shard."),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        help="Stop when nothing came for so many seconds; with --to that is an error. Default with --to: 30; with "
        "--follow: never.",
    ),
]
KeyPrefixOption = Annotated[
    str | None, typer.Option("--key-prefix", help="Only records whose key begins like this.")
]
IsolationOption = Annotated[
    str, typer.Option(help="committed, read_uncommitted or uncommitted; by default what the topic says.")
]
PrettyOption = Annotated[
    bool | None,
    typer.Option(
        "--pretty/--no-pretty",
        help="Values that are JSON over several lines (default: where stdout is a terminal).",
        show_default=False,
    ),
]


@command("consume", "antiphon consume greetings --since 10m --json")
def consume(
    topic: Annotated[str, typer.Argument(help="Topic or table to read.")],
    shard: ShardOption = None,
    start: StartOption = None,
    since: SinceOption = None,
    end: EndOption = None,
    count: Annotated[int | None, typer.Option("--count", "-n", help="Stop after so many records.")] = None,
    follow: FollowOption = False,
    timeout: TimeoutOption = None,
    key: Annotated[str | None, typer.Option("--key", help="Only records with this key.")] = None,
    key_prefix: KeyPrefixOption = None,
    isolation: IsolationOption = "",
    keys: Annotated[bool, typer.Option("--keys", "-k", help="Print KEY<tab>VALUE.")] = False,
    pretty: PrettyOption = None,
    on_corrupt: OnCorruptOption = FAIL,
    dead_letters: DeadLettersOption = None,
    common: CommonOptions = COMMON,
) -> None:
    """Print records, one a line."""
    _check(start, since, isolation)
    choice = corrupt_choice(on_corrupt, dead_letters, topic)
    span = Span(start, None if since is None else since_ms(since), end, follow, isolation, timeout)
    wanted = _wanted(key, key_prefix)
    with common.connect() as db:
        log = db.topic(topic, any_kind=True)
        shards = list(range(log.shards)) if shard is None else [shard]
        passed_over = PassedOver(None if dead_letters is None else db.topic(dead_letters), note)
        source = RecordSource(db, log, span, FAIL if choice == FAIL else passed_over.add, note)
        lines = RecordLines(
            topic,
            keys=keys,
            as_json=common.as_json,
            pretty=sys.stdout.isatty() if pretty is None else pretty,
            shards=follow and len(shards) > 1,
        )
        with closing(passed_over.taking_along(source.records(shards))) as records:
            for found in islice((each for each in records if wanted(each[1])), count):
                lines.write(*found)


def _check(start: int | None, since: str | None, isolation: str) -> None:
    """Refuse words that do not go together."""
    if isolation not in {"", *ISOLATIONS}:
        usage(f"--isolation is {', '.join(ISOLATIONS)}, not {isolation!r}")
    if start is not None and since is not None:
        usage("give --from or --since, not both")


def _wanted(key: str | None, prefix: str | None) -> Callable[[Record], bool]:
    """Which records are printed."""
    exact, begins = None if key is None else key.encode(), None if prefix is None else prefix.encode()

    def wanted(record: Record) -> bool:
        if exact is not None and record.key != exact:
            return False
        return begins is None or (record.key is not None and record.key.startswith(begins))

    return wanted
