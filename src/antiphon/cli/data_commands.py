"""`antiphon produce` and `antiphon consume`: lines of stdin to records, records to lines of stdout."""

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any

import typer

import antiphon
from antiphon.cli.cluster_commands import DirOption, JsonOption, ServersOption, server_addresses
from antiphon.cli.corrupt_options import DeadLettersOption, OnCorruptOption, corrupt_choice
from antiphon.cli.output import reports_errors, usage
from antiphon.client.local_folder import DEFAULT_DIR
from antiphon.client.log_reader import ISOLATIONS
from antiphon.errors import InvalidRequestError, UnknownTopicError
from antiphon.records.decode import Record
from antiphon.records.unreadable import FAIL, letter_shard

BATCH_RECORDS = 1000

Message = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def mount(app: typer.Typer) -> None:
    """Add this module's commands to the command line."""
    app.command(epilog="Example: printf 'a\\nb\\n' | antiphon produce greetings")(produce)
    app.command(epilog="Example: antiphon consume greetings --from 0 --json")(consume)


@reports_errors
def produce(
    topic: Annotated[str, typer.Argument(help="Topic to append to; it is created when it does not exist.")],
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="Lines are KEY<separator>VALUE.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="One key for every record.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="name=value; may be repeated.")
    ] = None,
    shard: Annotated[
        int | None, typer.Option(help="Shard to append to (default: by key, else spread).")
    ] = None,
    expect: Annotated[
        int | None,
        typer.Option("--expect", help="Append only if this is the shard's next offset; needs --shard."),
    ] = None,
    servers: ServersOption = None,
    directory: DirOption = DEFAULT_DIR,
    as_json: Annotated[
        bool, typer.Option("--json", help='Lines are {"key", "value", "headers"}; prints positions as JSON.')
    ] = False,
) -> None:
    """Append each line of stdin as a record; every one is durable and committed when the command ends."""
    if expect is not None and shard is None:
        usage("--expect needs --shard: offsets belong to a shard")
    if key is not None and key_separator is not None:
        usage("give --key or --key-separator, not both")
    headers = _headers(header or [])
    messages = _messages(sys.stdin.buffer, key, key_separator, headers, as_json=as_json)
    count = 0
    with antiphon.connect(server_addresses(servers, directory)) as db:
        log = _open(db, topic)
        while chunk := list(islice(messages, BATCH_RECORDS)):
            positions = log.append_batch(chunk, shard=shard, expected_offset=expect)
            count += len(chunk)
            if expect is not None:
                expect = positions[-1].offset + 1
            if as_json:
                for position in positions:
                    typer.echo(
                        json.dumps(
                            {"shard": position.shard, "offset": position.offset, "term": position.term}
                        )
                    )
    if not as_json:
        typer.echo(f"appended {count} records to {topic}", err=True)


def _open(db: "antiphon.Client", topic: str) -> "antiphon.Topic":
    try:
        return db.topic(topic)
    except UnknownTopicError:
        db.create_topic(topic)
        typer.echo(f"antiphon: created topic {topic} with 1 shard", err=True)
        return db.topic(topic)


def _headers(pairs: list[str]) -> tuple[tuple[str, bytes | None], ...]:
    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            usage(f"--header takes name=value, not {pair!r}")
        found.append((name, value.encode()))
    return tuple(found)


def _messages(
    lines: Iterable[bytes],
    key: str | None,
    separator: str | None,
    headers: tuple[tuple[str, bytes | None], ...],
    *,
    as_json: bool,
) -> Iterator[Message]:
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip(b"\n")
        if as_json:
            yield _from_json(line, number, headers)
        elif separator is not None:
            front, found, value = line.partition(separator.encode())
            if not found:
                raise InvalidRequestError(
                    f"line {number} has no key separator {separator!r}; nothing of it was appended"
                )
            yield front, value, headers
        else:
            yield key.encode() if key is not None else None, line, headers


def _from_json(line: bytes, number: int, headers: tuple[tuple[str, bytes | None], ...]) -> Message:
    try:
        document = json.loads(line)
        own = tuple(
            (str(name), None if value is None else str(value).encode())
            for name, value in (document.get("headers") or {}).items()
        )
        return _bytes(document.get("key")), _bytes(document.get("value")), headers + own
    except (ValueError, AttributeError) as error:
        raise InvalidRequestError(
            f'line {number} is not a JSON object with "key" and "value": {error}'
        ) from None


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@reports_errors
def consume(
    topic: Annotated[str, typer.Argument(help="Topic or table to read.")],
    shard: Annotated[
        int | None, typer.Option(help="Only this shard (default: all, one after the other).")
    ] = None,
    start: Annotated[
        int, typer.Option("--from", help="First offset in each shard; -1: only what comes from now on.")
    ] = 0,
    end: Annotated[
        int | None, typer.Option("--to", help="Stop before this offset (default: the end as it is now).")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", help="Stop after so many records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records; needs one shard.")
    ] = False,
    isolation: Annotated[
        str,
        typer.Option(help="committed, read_uncommitted or uncommitted; by default what the topic says."),
    ] = "",
    keys: Annotated[bool, typer.Option("--keys", "-k", help="Print KEY<tab>VALUE.")] = False,
    on_corrupt: OnCorruptOption = FAIL,
    dead_letters: DeadLettersOption = None,
    servers: ServersOption = None,
    directory: DirOption = DEFAULT_DIR,
    as_json: JsonOption = False,
) -> None:
    """Print records, one a line."""
    choice = corrupt_choice(on_corrupt, dead_letters, topic)
    if isolation not in {"", *ISOLATIONS}:
        usage(f"--isolation is {', '.join(ISOLATIONS)}, not {isolation!r}")
    with antiphon.connect(server_addresses(servers, directory)) as db:
        log = db.topic(topic, any_kind=True)
        shards = list(range(log.shards)) if shard is None else [shard]
        if follow and len(shards) > 1:
            usage(f"{topic} has {len(shards)} shards: --follow needs --shard N")
        passed_over = _PassedOver(None if dead_letters is None else db.topic(dead_letters))
        left = count
        for index in shards:
            records = passed_over.taking_along(
                log.read(
                    shard=index,
                    start=start,
                    end=end,
                    isolation=isolation,
                    follow=follow,
                    on_corrupt=FAIL if choice == FAIL else passed_over.add,
                )
            )
            for record in islice(records, left):
                _print(record, topic, index, keys=keys, as_json=as_json)
                left = None if left is None else left - 1
            if left == 0:
                break


class _PassedOver:
    """Batches that cannot be read: each is told of on stderr, and appended to a topic where one is named."""

    def __init__(self, dead_letters: "antiphon.Topic | None") -> None:
        self._dead_letters = dead_letters
        self._waiting: list[antiphon.UnreadableBatch] = []

    def add(self, batch: "antiphon.UnreadableBatch") -> None:
        """Called in the client's thread, where it cannot be asked for anything."""
        self._waiting.append(batch)

    def taking_along(self, records: Iterator[Record]) -> Iterator[Record]:
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


def _print(record: Record, topic: str, shard: int, *, keys: bool, as_json: bool) -> None:
    if as_json:
        document = {
            "topic": topic,
            "shard": shard,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": as_text(record.key),
            "value": as_text(record.value),
        }
        if record.headers:
            document["headers"] = {name: as_text(value) for name, value in record.headers}
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    else:
        out = sys.stdout.buffer
        if keys:
            out.write((record.key or b"") + b"\t")
        out.write((record.value or b"") + b"\n")
    sys.stdout.flush()


def as_text(value: bytes | None) -> str | dict[str, str] | None:
    """Text where it is UTF-8, else {"base64": ...}, so that no byte is lost."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
