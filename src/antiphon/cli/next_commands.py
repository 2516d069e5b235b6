"""The next command to type after a command has failed: one table for all commands.

A row says which error of which commands it is for, and what has to be known of it (`details` of the error, the words that
the command was given). The first row that fits is said behind the error's own words: "; `COMMAND` does something". An
error that names a command itself is left as it is.
"""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from antiphon.client.finding import SERVERS
from antiphon.client.local_folder import DEFAULT_DIR
from antiphon.errors import (
    AccessDeniedError,
    AntiphonError,
    ArchiveError,
    BackupError,
    DirectoryInUseError,
    DiskFullError,
    InternalError,
    InvalidRequestError,
    KeyNotFoundError,
    NewerFormatError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    OverloadedError,
    PortInUseError,
    StorageFailedError,
    TimedOutError,
    TopicExistsError,
    UnauthenticatedError,
    UnavailableError,
    UnknownShardError,
    UnknownTopicError,
    UnreachableError,
    VersionMismatchError,
    WrongKindError,
)

Facts = Mapping[str, Any]


class Next(NamedTuple):
    """A row: after one of `errors` of a command whose words are `of` (a regular expression), `command` does `does`.

    `command` has names in braces for what is known; if one of them is not known, the row does not fit. Words in capitals
    are for the user to choose. `facts`: what else has to be so.
    """

    errors: type[AntiphonError] | tuple[type[AntiphonError], ...]
    command: str
    does: str
    of: str = ".+"
    facts: Facts = {}


SHOWS_ALL: Final = "shows what there is"
CREATES: Final = "creates it"
OF_ONE_NODE: Final = ("node start", "node recover")  # commands whose --dir is a node's, in the cluster's
OUT_OF_ORDER: Final = (UnavailableError, TimedOutError, NotLeaderError, NotReadyError)

# {verb} is the last word of the command that failed; {dir} and {where} are its --dir, or that and its --servers, if given.
NEXT: Final = (
    Next(
        UnknownTopicError,
        "antiphon topic create {name}{where}",
        CREATES,
        of="consume|produce",
    ),
    Next(UnknownTopicError, "antiphon table create {name}{where}", CREATES, of="kv .+|load"),
    Next(UnknownTopicError, "antiphon {kind} create {name} --servers {at}", CREATES, of="pipeline .+"),
    Next(UnknownTopicError, "antiphon topic list{where}", SHOWS_ALL, of="topic .+"),
    Next(UnknownTopicError, "antiphon table list{where}", SHOWS_ALL, of="table .+"),
    Next(UnknownTopicError, "antiphon shard list{where}", SHOWS_ALL),
    Next(UnknownShardError, "antiphon shard list --topic {name}{where}", "shows its shards"),
    Next(TopicExistsError, "antiphon {kind} describe {name}{where}", "shows it", of="(topic|table) create"),
    Next(
        TopicExistsError,
        "antiphon backup restore-topic {place} {name} --as NAME{where}",
        "restores it under another name",
        of="backup restore-topic",
    ),
    Next(
        WrongKindError,
        "antiphon table {verb} {name}{where}",
        "is for tables",
        of="topic (describe|alter|delete)",
    ),
    Next(
        WrongKindError,
        "antiphon topic {verb} {name}{where}",
        "is for topics",
        of="table (describe|alter|delete)",
    ),
    Next(WrongKindError, "antiphon consume {name}{where}", "reads a topic", of="kv .+"),
    Next(WrongKindError, "antiphon kv {name} put KEY VALUE{where}", "writes a row of a table", of="produce"),
    Next(
        InvalidRequestError,
        "antiphon topic alter {name} --shards NUMBER{where}",
        "gives a topic more shards",
        of="shard split",
        facts={"kind": "topic"},
    ),
    Next(
        InvalidRequestError,
        "antiphon shard list --topic {topic}{where}",
        "shows which nodes have one",
        of="shard .+",
        facts={"unknown": "replica"},
    ),
    Next(
        WrongKindError,
        "antiphon audit --{found}s {name}{where}",
        "audits it",
        of="audit",
    ),
    Next(WrongKindError, "antiphon table list{where}", "shows the tables", of="load|replay"),
    Next(KeyNotFoundError, "antiphon kv {table} list{where}", "shows the keys", of="kv .+"),
    Next(
        VersionMismatchError,
        "antiphon kv {table} list{where}",
        "shows the keys",
        of="kv .+",
        facts={"actual": -1},
    ),
    Next(
        VersionMismatchError,
        "antiphon kv {table} get {key} --json{where}",
        "shows the version that it has",
        of="kv .+",
    ),
    Next(
        OffsetOutOfRangeError,
        "antiphon shard list --topic {table}{where}",
        "shows where its logs end",
        of="kv .+",
    ),
    Next(OffsetOutOfRangeError, "antiphon shard list --topic {topic}{where}", "shows where its logs end"),
    Next(
        InvalidRequestError,
        "antiphon node list{where}",
        "shows which there are",
        facts={"unknown": "node"},
    ),
    Next(InvalidRequestError, "antiphon node voters{where}", "shows who votes", facts={"unknown": "voter"}),
    Next(InvalidRequestError, "antiphon user list{where}", SHOWS_ALL, facts={"unknown": "user"}),
    Next(
        InvalidRequestError,
        "antiphon user add {name} --generate{where}",
        "makes one up",
        facts={"unknown": "password"},
    ),
    Next(
        InvalidRequestError,
        "antiphon {path} --help",
        "shows how it is called",
        facts={"unknown": "words"},
    ),
    Next(InvalidRequestError, "antiphon quota list{where}", SHOWS_ALL, facts={"unknown": "quota"}),
    Next(InvalidRequestError, "antiphon acl list{where}", SHOWS_ALL, facts={"unknown": "acl"}),
    Next(InvalidRequestError, "antiphon groups list{where}", SHOWS_ALL, facts={"unknown": "group"}),
    Next(
        InvalidRequestError,
        "antiphon transactions list{where}",
        SHOWS_ALL,
        facts={"unknown": "transactional id"},
    ),
    Next(
        InvalidRequestError,
        "antiphon client-metrics list{where}",
        SHOWS_ALL,
        facts={"unknown": "subscription"},
    ),
    Next(
        InvalidRequestError,
        "antiphon {kind} describe {name}{where}",
        "shows all settings",
        of="(topic|table) alter",
        facts={"unknown": "setting"},
    ),
    Next(
        InvalidRequestError, "antiphon pipeline example > {file}", "writes one", facts={"unknown": "pipeline"}
    ),
    Next(
        InvalidRequestError, "antiphon acl list --toml > {file}", "writes one", facts={"unknown": "acl file"}
    ),
    Next(
        InvalidRequestError,
        "antiphon node add{dir}",
        "starts one more node",
        of="(topic|table) (create|alter)",
        facts={"lacking": "nodes"},
    ),
    Next(
        InvalidRequestError,
        "antiphon node add{dir}",
        "adds a node to that cluster",
        of="up|node start",
        facts={"lacking": "nodes"},
    ),
    Next(
        InvalidRequestError,
        "antiphon node list{where}",
        "shows which there are, with their addresses",
        of="node start",
        facts={"running": True},
    ),
    Next(
        UnreachableError,
        "antiphon up{dir}",
        "starts it again",
        facts={"stopped": True},
    ),
    Next(UnreachableError, "antiphon doctor{where}", "looks for the cause"),
    Next(OUT_OF_ORDER, "antiphon doctor{where}", "looks for the cause", of="status|doctor"),
    Next(OUT_OF_ORDER, "antiphon status{where}", "shows which nodes and shards are up", of="(?!consume).+"),
    Next(OverloadedError, "antiphon top{where}", "shows which shards and nodes are busy"),
    Next(UnauthenticatedError, "antiphon doctor{where}", "looks at the login"),
    Next(
        AccessDeniedError,
        "antiphon acl add --principal {principal} --resource {resource} --name {name} --operation {operation}{where}",
        "of an administrator allows it",
    ),
    Next(PortInUseError, "antiphon up{dir} --{listener}-port 0", "takes free ports", of="up"),
    Next(PortInUseError, "antiphon doctor{dir}", "shows what is in the way"),
    Next(DirectoryInUseError, "antiphon down{dir}", "stops the nodes", of="node recover"),
    Next(
        BackupError,
        "antiphon backup list {place}",
        "shows the backups there",
        of="backup (show|verify|prune|restore|restore-topic)",
    ),
    Next(ArchiveError, "antiphon archive verify {topic}{where}", "reads all its files", of="archive .+"),
    Next(NewerFormatError, "pip install --upgrade antiphon", "brings a newer version"),
    Next((DiskFullError, StorageFailedError), "antiphon status{where}", "shows which node that is"),
    Next(InternalError, "antiphon doctor{where}", "looks for the cause"),
)

_NAMES_ONE: Final = re.compile(r"`(antiphon|pip) |pip install ")


class Call(NamedTuple):
    """A command that runs: its words behind `antiphon`, and what it was given, by the names of its parameters."""

    path: str = ""
    given: Facts = {}

    @property
    def known(self) -> dict[str, Any]:
        """What a row may name."""
        found = {name: value for name, value in self.given.items() if isinstance(value, str | int | Path)}
        table = getattr(self.given.get("context"), "obj", None)
        if table:
            found["table"] = found["name"] = table  # of `antiphon kv TABLE`
        first, _, verb = self.path.partition(" ")
        found |= {"path": self.path, "verb": verb, "dir": self._option("directory"), "where": self._where()}
        if first in {"topic", "table"}:
            found["kind"] = first
        return found

    def _where(self) -> str:
        return self._option("servers") + self._option("directory")

    def _option(self, name: str) -> str:
        value = self.given.get(name)
        if not value or value in (DEFAULT_DIR, os.environ.get(SERVERS)):
            return ""
        if name == "directory" and self.path in OF_ONE_NODE:
            value = Path(value).absolute().parent
        return f" --{'dir' if name == 'directory' else name} {shlex.quote(str(value))}"


def with_next(message: str, error: AntiphonError, call: Call, **facts: Any) -> str:
    """An error's words, in one line, with the next command behind them if one is known; `facts`: known beside its own."""
    message = " ".join(message.split())
    if _NAMES_ONE.search(message):
        return message
    known = call.known | facts | {name: value for name, value in error.details.items() if value is not None}
    for row in NEXT:
        if _fits(row, error, call, known):
            if row.does == CREATES:
                message = message.removesuffix("; create it first")
            return joined(message, filled(row.command, known), row.does)
    return message


def with_help(message: str, call: Call) -> str:
    """Words about a wrong call, with the command behind them that shows how it is made."""
    if _NAMES_ONE.search(message) or not call.path:
        return message
    words = call.path.split()
    if words[0] == "kv":
        words.insert(1, shlex.quote(str(call.known.get("table", "default"))))
    return joined(message, f"antiphon {' '.join(words)} --help", "shows how it is called")


def joined(message: str, command: str, does: str) -> str:
    """The form that all errors have which name a command."""
    return f"{message}{'' if message.endswith(('?', '.', '!')) else ';'} `{command}` {does}"


def filled(command: str, known: Facts) -> str:
    """With what is known in place of the names in braces, as a shell takes it."""
    parts = {
        name: value if name in {"dir", "where", "path"} else shlex.quote(str(value))
        for name, value in known.items()
    }
    return command.format_map(parts)


def _fits(row: Next, error: AntiphonError, call: Call, known: Facts) -> bool:
    return (
        isinstance(error, row.errors)
        and re.fullmatch(row.of, call.path or "-") is not None
        and all(known.get(name) == value for name, value in row.facts.items())
        and all(name in known for name in names_in(row.command))
    )


def names_in(command: str) -> list[str]:
    """The names in braces."""
    return re.findall(r"{(\w+)}", command)
