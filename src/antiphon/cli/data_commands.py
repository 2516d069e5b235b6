"""`antiphon produce`: lines of stdin to records."""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any

import typer

import antiphon
from antiphon.cli.declare import DirOption, ServersOption, command, server_addresses
from antiphon.cli.output import note, pairs_of, print_json, usage
from antiphon.client.local_folder import DEFAULT_DIR
from antiphon.errors import InvalidRequestError, UnknownTopicError

BATCH_RECORDS = 1000

Message = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@command("produce", "printf 'a\\nb\\n' | antiphon produce greetings")
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
    headers = tuple((name, value.encode()) for name, value in pairs_of(header, "--header"))
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
                    print_json({"shard": position.shard, "offset": position.offset, "term": position.term})
    if not as_json:
        typer.echo(f"appended {count} records to {topic}", err=True)


def _open(db: "antiphon.Client", topic: str) -> "antiphon.Topic":
    try:
        return db.topic(topic)
    except UnknownTopicError:
        db.create_topic(topic)
        note(f"created topic {topic} with 1 shard")
        return db.topic(topic)


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
