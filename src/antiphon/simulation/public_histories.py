"""Readers for histories in two public text formats: Jepsen's log of a register, and key-value operations as EDN maps."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from antiphon.errors import InvalidRequestError
from antiphon.simulation.linearizability import Model, Operation, Verdict, check, register, text_value

_JEPSEN = re.compile(r"^INFO\s+jepsen\.util\s+-\s+(\d+)\s+:(\w+)\s+:(\w+)\s+(.*?)\s*$")
_KV = re.compile(r'\{:process (\d+), :type :(\w+), :f :(\w+), :key "(.*?)", :value (nil|"(.*?)")\}')


def judge_history(path: Path) -> Verdict:
    """Read a history of either format and check it. Raises InvalidRequestError for anything else."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"cannot read {path}: {error}") from None
    return check(*_parse(path, text.splitlines()))


def _parse(path: Path, lines: list[str]) -> tuple[list[Operation], Model, Any]:
    if any(_JEPSEN.match(line) for line in lines):
        return _operations(_jepsen_events(lines)), register, None
    if any(_KV.search(line) for line in lines):
        return _operations(_kv_events(lines)), text_value, ""
    raise InvalidRequestError(
        f"{path} is neither a Jepsen register log (INFO jepsen.util - PROCESS :TYPE :OP VALUE) "
        "nor a list of key-value operations ({:process N, :type :T, :f :F, :key K, :value V})"
    )


Event = tuple[int, str, str, str, Any]  # process, type, operation, key, value


def _jepsen_events(lines: Iterable[str]) -> Iterable[Event]:
    for line in lines:
        found = _JEPSEN.match(line)
        if found is not None:
            process, kind, what, value = found.groups()
            yield int(process), kind, what, "", _jepsen_value(value)


def _jepsen_value(text: str) -> Any:
    numbers = [int(word) for word in re.findall(r"-?\d+", text)]
    if text.startswith("["):
        return tuple(numbers)
    return numbers[0] if numbers else None


def _kv_events(lines: Iterable[str]) -> Iterable[Event]:
    for line in lines:
        found = _KV.search(line)
        if found is not None:
            process, kind, what, key, _, value = found.groups()
            yield int(process), kind, what, key, value


def _operations(events: Iterable[Event]) -> list[Operation]:
    """Pair invocations with their outcomes. `fail` means that it had no effect, `info` that nobody knows."""
    open_: dict[int, tuple[int, Event]] = {}
    done: list[Operation] = []
    for time, (process, kind, what, key, value) in enumerate(events):
        if kind == "invoke":
            open_[process] = (time, (process, kind, what, key, value))
            continue
        if process not in open_ or kind == "info":
            continue  # an unknown outcome leaves the operation open; its process number is not used again
        invoked, (_, _, _, _, argument) = open_.pop(process)
        if kind == "fail" and what != "cas":
            continue  # did not happen
        result = kind == "ok" if what == "cas" else value
        done.append(Operation(process, what, argument, result, invoked, time, key))
    for process, (invoked, (_, _, what, key, argument)) in sorted(open_.items()):
        done.append(Operation(process, what, argument, None, invoked, None, key))
    return sorted(done, key=lambda operation: operation.invoked)
