"""`antiphon kv TABLE ...`: keys and values of a table."""

import re
import shlex
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from antiphon.cli.declare import COMMON, CommonOptions, command, group
from antiphon.cli.output import A_MOMENT_S, print_json, print_table, progress, say, usage
from antiphon.cli.record_lines import as_text
from antiphon.cli.times import SinceOption, since_ms
from antiphon.errors import SessionNotFoundError

if TYPE_CHECKING:
    import antiphon

SESSION_TIMEOUT_S = 10.0
KeyArgument = Annotated[str, typer.Argument(help="The key.")]
ABSENT = -1


class _TableFirst(TyperGroup):
    """Says what is wrong with `antiphon kv get KEY`, which would be a table called get."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in self.commands and (len(args) < 2 or args[1] not in {*self.commands, "--help"}):
            usage(f"the table comes first: `antiphon kv default {shlex.join(args)}`")
        table: Any = self.params[0]
        if args[1:] and args[1] in self.commands:
            table.get_usage_pieces = lambda _: [
                args[0]
            ]  # what errors tell to type names the table, not {table}
        return super().parse_args(ctx, args)


kv = group(
    "kv",
    "Keys and values of a table.",
    "Example: antiphon kv default get greeting",
    cls=_TableFirst,
    subcommand_metavar="COMMAND ...",
)


@kv.callback()
def _table(
    context: typer.Context,
    table: Annotated[
        str, typer.Argument(help="Name of the table; a fresh cluster has one called `default`.")
    ],
) -> None:
    """Keys and values of a table."""
    context.obj = table


@command("kv put", "antiphon kv default put greeting hello --if-absent")
def put(
    context: typer.Context,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(help="The value; - reads it from stdin.")],
    if_version: Annotated[
        int | None, typer.Option("--if-version", help="Only if the key has this version.")
    ] = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only if the key is not there.")] = False,
    ephemeral: Annotated[
        bool,
        typer.Option("--ephemeral", help="Under a session: the row is there until this command is ended."),
    ] = False,
    session_timeout: Annotated[
        float | None,
        typer.Option(
            help="Of that session, in seconds (10): how long the row outlives a command that was killed."
        ),
    ] = None,
    common: CommonOptions = COMMON,
) -> None:
    """Set a key."""
    if if_absent and if_version is not None:
        usage("give --if-version or --if-absent, not both")
    if session_timeout is not None and not ephemeral:
        usage("--session-timeout is for --ephemeral")
    data = sys.stdin.buffer.read() if value == "-" else value.encode()
    expected = ABSENT if if_absent else if_version
    with common.connect() as db:
        table = db.table(context.obj)
        if ephemeral:
            _hold(
                db, table, key, data, expected, session_timeout or SESSION_TIMEOUT_S, as_json=common.as_json
            )
            return
        _print_version(key, table.put(key, data, expected_version=expected), as_json=common.as_json)


def _print_version(key: str, version: "antiphon.Version", *, as_json: bool) -> None:
    told = {"key": key, "version": version.id, "modifications": version.modifications}
    say(f"version {version.id}", told, as_json=as_json)
    sys.stdout.flush()


def _hold(
    db: "antiphon.Client",
    table: "antiphon.Table",
    key: str,
    data: bytes,
    expected: int | None,
    timeout_s: float,
    *,
    as_json: bool,
) -> None:
    """Keep a row under a session until a signal comes. Raises SessionNotFoundError if the session is lost before."""
    ended, lost = threading.Event(), list[SessionNotFoundError]()

    def lose(error: SessionNotFoundError) -> None:
        lost.append(error)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with db.session(timeout_s=timeout_s, on_lost=lose) as session:
        _print_version(key, table.put(key, data, expected_version=expected, session=session), as_json=as_json)
        ended.wait()
    if lost:
        raise lost[0]


AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        help='The past: as of this offset of the key\'s shard, or of each shard as JSON, {"0": 17}.',
    ),
]


def _asked_offsets(text: str | None, pattern: str, rule: str) -> int | dict[int, int] | None:
    """The offset, which matches the pattern, or the offsets by shard, that an option names."""
    if text is None or re.fullmatch(pattern, text, re.ASCII):
        return None if text is None else int(text)
    try:
        return msgspec.json.decode(text, type=dict[int, int], strict=False)
    except msgspec.DecodeError:
        usage(f'{rule} or JSON such as {{"0": 17, "1": 4}}, and not {text!r}')


def _as_of(text: str | None) -> int | dict[int, int] | None:
    return _asked_offsets(text, r"\d+", "--as-of is an offset,")


@command("kv get", "antiphon kv default get greeting")
def get(
    context: typer.Context,
    key: KeyArgument,
    as_of: AsOfOption = None,
    common: CommonOptions = COMMON,
) -> None:
    """Print a key's value; exit code 1 if it is not there."""
    with common.connect() as db:
        row = db.table(context.obj).get(key, as_of=_as_of(as_of))
    if common.as_json:
        print_json(_row_json(row))
    else:
        sys.stdout.buffer.write((row.value or b"") + b"\n")
        sys.stdout.flush()


@command("kv delete", "antiphon kv default delete greeting --if-version 3")
def delete(
    context: typer.Context,
    key: KeyArgument,
    if_version: Annotated[
        int | None, typer.Option("--if-version", help="Only if the key has this version.")
    ] = None,
    common: CommonOptions = COMMON,
) -> None:
    """Remove a key; exit code 1 if it is not there."""
    with common.connect() as db:
        db.table(context.obj).delete(key, expected_version=if_version)
    say(f"deleted {key}", {"key": key, "deleted": True}, as_json=common.as_json)


@command("kv delete-range", "antiphon kv default delete-range a b")
def delete_range(
    context: typer.Context,
    start: Annotated[str, typer.Argument(help="First key to remove.")],
    end: Annotated[str, typer.Argument(help="First key to keep; an empty one removes to the end.")],
    common: CommonOptions = COMMON,
) -> None:
    """Remove every key from START up to, not including, END."""
    with common.connect() as db:
        db.table(context.obj).delete_range(start, end)
    shown = {"from": start, "to": end, "deleted": True}
    say(f"deleted {start}..{end or 'the end'}", shown, as_json=common.as_json)


StartOption = Annotated[str, typer.Option("--from", help="First key.")]
EndOption = Annotated[str, typer.Option("--to", help="Stop before this key.")]


@command("kv list", "antiphon kv default list --from a --to b")
def list_keys(
    context: typer.Context,
    start: StartOption = "",
    end: EndOption = "",
    common: CommonOptions = COMMON,
) -> None:
    """Print the keys in order."""
    with common.connect() as db:
        with progress("reading the keys", after_s=A_MOMENT_S):
            keys = db.table(context.obj).list(start, end)
        if common.as_json:
            print_json([as_text(key) for key in keys])
        else:
            for key in keys:
                typer.echo(_shown(key))


@command("kv scan", "antiphon kv default scan --json")
def scan(
    context: typer.Context,
    start: StartOption = "",
    end: EndOption = "",
    as_of: AsOfOption = None,
    common: CommonOptions = COMMON,
) -> None:
    """Print keys, versions and values in order."""
    with common.connect() as db:
        rows = db.table(context.obj).scan(start, end, as_of=_as_of(as_of))
        if common.as_json:
            for row in rows:
                print_json(_row_json(row))
        else:
            with progress("reading the rows", after_s=A_MOMENT_S):
                shown = [
                    (_shown(row.key), row.version.id, row.version.modifications, _shown(row.value))
                    for row in rows
                ]
            print_table(("KEY", "VERSION", "MODIFICATIONS", "VALUE"), shown, as_json=False)


@command("kv watch", "antiphon kv default watch --count 1")
def watch(
    context: typer.Context,
    count: Annotated[int | None, typer.Option("--count", "-n", help="Stop after so many changes.")] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only changes of keys that begin like this.")] = "",
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help='First offset in each shard, or JSON, {"0": 17}; -2: all that is in the log (default: from now on).',
        ),
    ] = None,
    since: SinceOption = None,
    common: CommonOptions = COMMON,
) -> None:
    """Print changes as they are committed, from now on, from an offset or from a time on."""
    if start is not None and since is not None:
        usage("give --from or --since, not both")
    since_time_ms = None if since is None else since_ms(since)
    asked = _asked_offsets(start, r"\d+|-[12]", "--from is an offset, -1, -2,")
    with common.connect() as db:
        table = db.table(context.obj)
        begin = _offsets(db, table, asked, since_time_ms)
        left = count
        with table.watch(start=begin) as changes:
            while left is None or left > 0:
                change = next(changes)
                if change.key.startswith(prefix.encode()):
                    _print_change(change, as_json=common.as_json)
                    left = None if left is None else left - 1


def _offsets(
    db: "antiphon.Client", table: "antiphon.Table", asked: int | dict[int, int] | None, time_ms: int | None
) -> int | list[int]:
    """Where a watch begins, by shard; shards that are not named: from now on."""
    if isinstance(asked, int):
        return asked
    if asked is not None:
        if strange := sorted(set(asked) - set(range(table.shards))):
            usage(f"{table.name} has shards 0 to {table.shards - 1}, not {strange[0]}")
        return [asked.get(shard, -1) for shard in range(table.shards)]
    if time_ms is None:
        return -1

    async def begin(shard: int) -> int:
        log_start, _ = await table.aio.offsets(shard)
        return max(log_start, await table.aio.offset_at(time_ms, shard))

    return [db.run(begin(shard)) for shard in range(table.shards)]


def _print_change(change: "antiphon.Change", *, as_json: bool) -> None:
    told = {
        "kind": change.kind.value,
        "key": as_text(change.key),
        "value": as_text(change.value),
        "version": change.version.id,
        "shard": change.shard,
        "offset": change.offset,
    }
    say(f"{change.kind.value}\t{_shown(change.key)}\t{_shown(change.value)}", told, as_json=as_json)
    sys.stdout.flush()


@command("kv sequence", "antiphon kv default sequence orders --count 3")
def sequence(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Where the last number is kept.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many numbers.")] = 1,
    common: CommonOptions = COMMON,
) -> None:
    """Print the next numbers of a sequence that begins with 1: nobody else gets these."""
    from antiphon.recipes import Counter

    with common.connect() as db:
        last = Counter(db, context.obj, key).add(count)
    numbers = list(range(last - count + 1, last + 1))
    say("\n".join(map(str, numbers)), {"key": key, "numbers": numbers}, as_json=common.as_json)


def _shown(value: bytes | None) -> str:
    return "-" if value is None else value.decode("utf-8", "backslashreplace")


def _row_json(row: "antiphon.Row") -> dict[str, object]:
    version = row.version
    return {
        "key": as_text(row.key),
        "value": as_text(row.value),
        "version": version.id,
        "modifications": version.modifications,
        "created_ms": version.created_ms,
        "modified_ms": version.modified_ms,
        "session_id": row.session_id,
    }
