"""`antiphon consume`: records of a topic, or of a table's log, to lines of stdout."""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from antiphon.cli.corrupt_options import DeadLettersOption, OnCorruptOption, corrupt_choice
from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.output import fail, usage
from antiphon.cli.record_lines import RecordLines
from antiphon.cli.times import SinceOption, since_ms
from antiphon.client.log_reader import EARLIEST, ISOLATIONS, LATEST
from antiphon.records.decode import Record
from antiphon.records.unreadable import FAIL, letter_shard
from antiphon.tools.merged_reads import NothingCameError, Pieces, merged

if TYPE_CHECKING:
    import antiphon

WAIT_S = 30.0
Records = Generator[tuple[int, Record], None, None]


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
    span = _Span(start, None if since is None else since_ms(since), end, follow, isolation, timeout)
    wanted = _wanted(key, key_prefix)
    with common.connect() as db:
        log = db.topic(topic, any_kind=True)
        shards = list(range(log.shards)) if shard is None else [shard]
        passed_over = _PassedOver(None if dead_letters is None else db.topic(dead_letters))
        source = _Source(db, log, span, FAIL if choice == FAIL else passed_over.add)
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


class _Span(NamedTuple):
    """Which records of each shard are read, as the options say it."""

    start: int | None
    since_ms: int | None
    end: int | None
    follow: bool
    isolation: str
    timeout_s: float | None


class _Source:
    """Records of some shards of a log."""

    def __init__(
        self,
        db: "antiphon.Client",
        log: "antiphon.Topic",
        span: _Span,
        on_corrupt: "str | Callable[[antiphon.UnreadableBatch], None]",
    ) -> None:
        self._db = db
        self._log = log
        self._span = span
        self._on_corrupt = on_corrupt

    def records(self, shards: list[int]) -> Records:
        """One shard after the other, each to its end; those that are followed as they come."""
        starts = {shard: self._start(shard) for shard in shards}
        if self._span.follow:
            yield from self._as_they_come(starts)
            return
        for shard, start in starts.items():
            if self._span.end is not None and self._ends_before(shard, self._span.end):
                yield from self._awaited(shard, start, self._span.end)
                continue
            for record in self._log.read(
                shard=shard,
                start=start,
                end=self._span.end,
                isolation=self._span.isolation,
                on_corrupt=self._on_corrupt,
            ):
                yield shard, record

    def _start(self, shard: int) -> int:
        if self._span.since_ms is not None:
            return self._log.offset_at(self._span.since_ms, shard)
        if self._span.start is None:
            return EARLIEST
        # "From now on" is one moment for all shards: not when the reader of each one begins.
        return self._log.offsets(shard)[1] if self._span.start == LATEST else self._span.start

    def _ends_before(self, shard: int, end: int) -> bool:
        """Is the end further than what is there to be read? Of what is not committed only reading tells."""
        return self._log.offsets(shard)[1] < end

    def _awaited(self, shard: int, start: int, end: int) -> Records:
        """Records up to an offset that is not there yet."""
        timeout_s = WAIT_S if self._span.timeout_s is None else self._span.timeout_s
        at = self._log.offsets(shard)[1]
        name = f"{self._log.name} shard {shard}"
        typer.echo(
            f"antiphon: {name} ends at {at}: waiting for offset {end - 1}, until nothing came for {timeout_s:g} s",
            err=True,
        )
        try:
            yield from merged(self._db, lambda: self._readers({shard: start}), timeout_s)
        except NothingCameError:
            at = self._log.offsets(shard)[1]
            fail(
                f"{name} ends at {at}, before --to {end}, and nothing came for {timeout_s:g} s; --timeout waits longer"
            )

    def _as_they_come(self, starts: dict[int, int]) -> Records:
        try:
            yield from merged(self._db, lambda: self._readers(starts), self._span.timeout_s)
        except NothingCameError:
            if self._span.end is not None:
                fail(f"nothing came for {self._span.timeout_s:g} s, and --to {self._span.end} is not reached")
            typer.echo(f"antiphon: nothing came for {self._span.timeout_s:g} s", err=True)

    def _readers(self, starts: dict[int, int]) -> Mapping[int, Pieces]:
        return {
            shard: self._log.aio.read_chunks(
                shard,
                start,
                self._span.end,
                isolation=self._span.isolation,
                follow=True,
                on_corrupt=self._on_corrupt,
            )
            for shard, start in starts.items()
        }


class _PassedOver:
    """Batches that cannot be read: each is told of on stderr, and appended to a topic where one is named."""

    def __init__(self, dead_letters: "antiphon.Topic | None") -> None:
        self._dead_letters = dead_letters
        self._waiting: list[antiphon.UnreadableBatch] = []

    def add(self, batch: "antiphon.UnreadableBatch") -> None:
        """Called in the client's thread, where it cannot be asked for anything."""
        self._waiting.append(batch)

    def taking_along(self, records: Records) -> Records:
        """The same records; what was passed over on the way to each is dealt with before it."""
        for record in records:
            self._deal()
            yield record
        self._deal()

    def _deal(self) -> None:
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            if self._dead_letters is not None:
                shard = letter_shard(batch, self._dead_letters.shards)
                self._dead_letters.append(batch.data, headers=batch.headers, shard=shard)
            typer.echo(
                f"antiphon: {batch.topic} shard {batch.shard}, offsets {batch.start} to {batch.end}: {batch.reason}; "
                + ("skipped" if self._dead_letters is None else "appended to the dead letters"),
                err=True,
            )
