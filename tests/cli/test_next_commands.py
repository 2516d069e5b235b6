"""The table of next commands: each is a command that the program has, and each error that names one has the same form."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import antiphon
from antiphon.cli.declare import CommonOptions
from antiphon.cli.next_commands import NEXT, Call, Next, filled, joined, names_in, with_help, with_next
from antiphon.client.local_folder import DEFAULT_DIR, LISTENERS
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    UnknownTopicError,
    UnreachableError,
    VersionMismatchError,
)
from tests.cli.parsing import parse

PACKAGE = Path(antiphon.__file__).parent
BACKTICKED = re.compile(r"`(antiphon [^`]+)`")
SAMPLES: dict[str, list[Any]] = {
    "kind": ["topic", "table"],
    "found": ["topic", "table"],
    "verb": ["describe", "alter", "delete"],
    "listener": list(LISTENERS),
    "principal": ["User:bob"],
    "operation": ["describe_configs"],
    "resource": ["transactional_id"],
    "path": ["quota set"],
    "dir": ["", " --dir 'a b'"],
    "where": ["", " --servers h:1 --dir 'a b'"],
}
NAMED = ["of a b", "prices"]  # anything else: what a user typed, quoted for a shell where that is needed


@pytest.mark.parametrize("row", NEXT, ids=lambda row: f"{row.command} after {row.of}")
def test_the_next_command_is_one_that_the_program_takes(row: Next) -> None:
    names = names_in(row.command)
    for place in range(max(len(SAMPLES.get(name, NAMED)) for name in names) if names else 1):
        known = {name: (among := SAMPLES.get(name, NAMED))[min(place, len(among) - 1)] for name in names}
        command = filled(row.command, known)
        if command.startswith("antiphon "):
            assert parse(command) == " ".join(_plain_words(command))
        else:
            assert command == "pip install --upgrade antiphon"


def _plain_words(command: str) -> list[str]:
    """The words of the command itself: those that the program has, in their order."""
    words = command.split()[1:]
    if words[0] == "kv":
        return ["kv", next(word for word in words[2:] if word in {"get", "list", "put"})]
    grouped = {
        "topic", "table", "shard", "node", "user", "acl", "quota", "groups", "transactions", "client-metrics", "backup",
        "pipeline", "archive",
    }  # fmt: skip
    return words[: 2 if words[0] in grouped else 1]


@pytest.mark.parametrize(
    "command", ["antiphon topic lst", "antiphon topic list --nosuch", "antiphon node drain x"]
)
def test_a_command_that_the_program_does_not_take_is_noticed(command: str) -> None:
    with pytest.raises(Exception, match=r"lst|nosuch|'x'"):
        parse(command)


class Said(NamedTuple):
    """A command in an error's words."""

    file: str
    command: str


def _said_by_errors() -> Iterator[Said]:
    """In `raise` of any error, and in `usage(...)` of commands; what is filled in becomes 1."""
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_text()
        if "`antiphon " not in source:
            continue
        for node in filter(_blames, ast.walk(ast.parse(source))):
            for part in ast.walk(node):
                for command in BACKTICKED.findall(_text(part)):
                    yield Said(str(file.relative_to(PACKAGE)), command)


def _blames(node: ast.AST) -> bool:
    is_usage = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "usage"
    return isinstance(node, ast.Raise) or is_usage


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_errors_name_whole_commands_that_the_program_takes() -> None:
    found = list(_said_by_errors())
    assert len(found) > 40, "the search still finds them"
    wrong = []
    for one in found:
        command = one.command.replace("kv default 1", "kv default get 1")  # what is filled in is a command
        try:
            parse(command)
        except Exception as error:  # noqa: BLE001 - whatever the parser says
            wrong.append(f"{one.file}: {one.command}: {error}")
    assert not wrong, "\n".join(wrong)


def _call(path: str, **given: Any) -> Call:
    return Call(path, {**CommonOptions()._asdict(), **given})


def test_what_the_user_typed_is_filled_in_for_a_shell() -> None:
    error = UnknownTopicError("there is no topic 'a b'; create it first", name="a b")
    call = _call("consume", topic="a b", servers="h:1", directory=Path("my data"))
    said = "there is no topic 'a b'; `antiphon topic create 'a b' --servers h:1 --dir 'my data'` creates it"
    assert with_next(error.message, error, call) == said


def test_options_that_were_not_given_are_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_SERVERS", "h:1")
    error = UnknownTopicError("there is no topic x", name="x")
    call = _call("topic describe", name="x", servers="h:1", directory=DEFAULT_DIR)
    assert with_next(error.message, error, call).endswith("; `antiphon topic list` shows what there is")


def test_the_first_row_that_fits_is_said() -> None:
    call = _call("kv put", key="k", context=_OfTable("prices"))
    absent, other = (VersionMismatchError("off", expected=3, actual=actual) for actual in (-1, 7))
    assert with_next("off", absent, call) == "off; `antiphon kv prices list` shows the keys"
    assert (
        with_next("off", other, call)
        == "off; `antiphon kv prices get k --json` shows the version that it has"
    )
    assert with_next("off", other, _call("produce")) == "off", "no row is for that command"


class _OfTable:
    def __init__(self, table: str) -> None:
        self.obj = table


def test_an_error_that_names_a_command_is_left_as_it_is() -> None:
    for message in ("do `antiphon node add`", "pip install 'antiphon[spark]'"):
        assert with_next(message, UnreachableError(message), _call("status")) == message
        assert with_help(message, _call("status")) == message


def test_an_error_without_a_row_says_its_own_words_only() -> None:
    assert with_next("no\n  way", AntiphonError("no\n  way"), _call("status")) == "no way"
    assert with_next("no", InvalidRequestError("no"), _call("topic create", name="x")) == "no"


def test_a_wrong_call_names_the_help_of_its_command() -> None:
    assert with_help("both", _call("node restart")).endswith(
        "; `antiphon node restart --help` shows how it is called"
    )
    of_table = with_help("both", _call("kv put", context=_OfTable("a b")))
    assert of_table.endswith("; `antiphon kv 'a b' put --help` shows how it is called")
    assert with_help("both", Call()) == "both"


def test_a_question_stays_one() -> None:
    assert joined("is it up?", "antiphon up", "starts it") == "is it up? `antiphon up` starts it"
    assert joined("it is down", "antiphon up", "starts it") == "it is down; `antiphon up` starts it"
