"""Is a history of concurrent operations linearizable?

The search of Wing and Gong with Lowe's memory: walk the history in time order; whenever an operation could take effect now
(it was invoked, and nothing that must come before it is still open), try it; when an operation returns that could not be
placed, undo the last choice. Configurations that were seen before, the set of placed operations together with the state
they led to, are not tried again.

An operation whose outcome is unknown (a time-out) may take effect at any later time or never, so it stays open to the end of
the history. Objects that do not share state, such as the keys of a table, are checked one by one.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from antiphon.errors import InvalidRequestError

STEPS_MAX = 20_000_000


class Verdict(StrEnum):
    """What a check found. UNKNOWN: the search was cut off before it could tell."""

    LINEARIZABLE = "linearizable"
    NOT_LINEARIZABLE = "not-linearizable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one process. `returned` is None while its outcome is unknown; times are positions in the history."""

    process: int
    what: str
    argument: Any  # hashable; what it is depends on the model
    result: Any
    invoked: int
    returned: int | None
    key: str = ""


# Given the state and an operation: the state after it, or NO where the operation's result does not fit the state.
Model = Callable[[Hashable, Operation], Hashable]
NO = object()


class _Call:
    """An element of the doubly linked history: an invocation, or the return that belongs to it."""

    __slots__ = ("index", "match", "next", "operation", "previous")

    def __init__(self, operation: Operation, index: int) -> None:
        self.operation = operation
        self.index = index
        self.match: _Call | None = None  # an invocation's return; None for returns
        self.previous: _Call | None = None
        self.next: _Call | None = None

    def unlink(self) -> None:
        if self.previous is not None:
            self.previous.next = self.next
        if self.next is not None:
            self.next.previous = self.previous

    def link(self) -> None:
        if self.previous is not None:
            self.previous.next = self
        if self.next is not None:
            self.next.previous = self


def _chain(operations: Sequence[Operation]) -> _Call:
    """The head of the history as a list of invocations and returns in time order; open operations return at the end."""
    end = 1 + max((max(op.invoked, op.returned or 0) for op in operations), default=0)
    events: list[tuple[int, int, int, _Call]] = []
    for index, operation in enumerate(operations):
        invocation, response = _Call(operation, index), _Call(operation, index)
        invocation.match = response
        events.append((operation.invoked, 0, index, invocation))
        events.append((end if operation.returned is None else operation.returned, 1, index, response))
    events.sort(key=lambda event: event[:3])
    head = last = _Call(Operation(-1, "", None, None, -1, None), -1)
    for *_, call in events:
        last.next, call.previous = call, last
        last = call
    return head


def check_object(
    operations: Sequence[Operation], model: Model, initial: Hashable, steps_max: int = STEPS_MAX
) -> Verdict:
    """Check the operations on one object."""
    head = _chain(operations)
    state, placed = initial, 0
    must_place = sum(operation.returned is not None for operation in operations)
    placed_known = 0
    stack: list[tuple[_Call, Hashable]] = []
    seen: set[tuple[int, Hashable]] = set()
    at = head.next
    for _ in range(steps_max):
        if placed_known == must_place or at is None:
            return Verdict.LINEARIZABLE
        if at.match is not None:
            after = model(state, at.operation)
            bits = placed | 1 << at.index
            if after is not NO and (bits, after) not in seen:
                seen.add((bits, after))
                stack.append((at, state))
                state, placed = after, bits
                placed_known += at.operation.returned is not None
                at.unlink()
                at.match.unlink()
                at = head.next
            else:
                at = at.next
            continue
        if at.operation.returned is None:  # everything that must be placed before the end has been tried
            return Verdict.LINEARIZABLE if placed_known == must_place else Verdict.NOT_LINEARIZABLE
        if not stack:
            return Verdict.NOT_LINEARIZABLE
        call, state = stack.pop()
        placed &= ~(1 << call.index)
        placed_known -= call.operation.returned is not None
        if call.match is not None:
            call.match.link()
        call.link()
        at = call.next
    return Verdict.UNKNOWN


def check(
    operations: Sequence[Operation], model: Model, initial: Hashable, steps_max: int = STEPS_MAX
) -> Verdict:
    """Check every key by itself; the worst verdict counts."""
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_key[operation.key].append(operation)
    found = Verdict.LINEARIZABLE
    for key in sorted(by_key, key=lambda name: len(by_key[name])):
        verdict = check_object(by_key[key], model, initial, steps_max)
        if verdict is Verdict.NOT_LINEARIZABLE:
            return verdict
        if verdict is Verdict.UNKNOWN:
            found = verdict
    return found


def register(state: Hashable, operation: Operation) -> Hashable:
    """A register with read, write and cas. `argument` of a cas is (expected, new); its `result` says whether it was done."""
    if operation.what == "read":
        return state if operation.returned is None or operation.result == state else NO
    new: Hashable
    if operation.what == "write":
        new = operation.argument
        return new
    if operation.what == "cas":
        expected, new = operation.argument
        if operation.returned is None:
            return new if state == expected else state
        if operation.result:
            return new if state == expected else NO
        return state if state != expected else NO
    raise InvalidRequestError(f"a register has read, write and cas, not {operation.what!r}")


def text_value(state: Hashable, operation: Operation) -> Hashable:
    """One key of a store of strings with get, put and append."""
    if operation.what == "get":
        return state if operation.returned is None or operation.result == state else NO
    if operation.what == "put":
        return str(operation.argument)
    if operation.what == "append":
        return str(state) + str(operation.argument)
    raise InvalidRequestError(f"a key has get, put and append, not {operation.what!r}")
