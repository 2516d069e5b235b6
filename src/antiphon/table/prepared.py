"""Transactions that are prepared in a shard of a table: what they are to change, and the keys that they lock until they end.

A prepared transaction has been judged, and has its versions, but its effects are no rows yet. The marker decides: a commit
makes them rows, an abort drops them. Meanwhile nobody else may write the keys, and a linearizable read of them waits, for
the coordinator may have decided already while the marker is still on its way.

    (none) --prepare--> prepared, its keys are locked --commit--> rows
                                                      --abort---> (nothing)

Pure. The store folds these changes from what is committed, on every replica (`table.prepared_rows`). The leader folds them
when they are appended, so that a marker lets the next writer in at once, and a prepare keeps him out (`table.evaluator`).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import KeyLockedError, OverloadedError
from antiphon.model.key_order import DeleteOrdered
from antiphon.model.requests import DeleteRange
from antiphon.records.key_order import is_text, key_of, sort_key

if TYPE_CHECKING:
    from antiphon.model.requests import TableOp
    from antiphon.records.changes import Effect

PREPARED_MAX: Final = 1_000  # transactions of a shard
PREPARED_BYTES_MAX: Final = 32 * 1024 * 1024  # of keys and values in them
EFFECT_BYTES: Final = 256  # that an effect takes beside its key and value, about


class Prepare(NamedTuple):
    """A producer's transaction is prepared with these effects."""

    producer_id: int
    effects: "list[Effect]"


class End(NamedTuple):
    """A producer's transaction ends."""

    producer_id: int
    commit: bool


TransactionChange = Prepare | End


class PreparedTransactions:
    """See the module's text.

    Attributes:
        by_producer: the effects of each, in their order.
        locked: the producer of each key that is locked.
        size_bytes: of all effects, about.
    """

    __slots__ = ("by_producer", "locked", "size_bytes")

    def __init__(self, found: "Iterable[Prepare]" = ()) -> None:
        self.by_producer: dict[int, list[Effect]] = {}
        self.locked: dict[bytes, int] = {}
        self.size_bytes = 0
        for one in found:
            self.prepare(one)

    def copy(self) -> "PreparedTransactions":
        """Another one, which goes its own way."""
        return PreparedTransactions(Prepare(*one) for one in self.by_producer.items())

    # -- changes ------------------------------------------------------------------------------------------------

    def prepare(self, change: Prepare) -> None:
        """The effects are in the log. Whatever the log says is taken: it was judged when it was appended."""
        effects = change.effects
        self.by_producer[change.producer_id] = [*self.by_producer.get(change.producer_id, ()), *effects]
        self.locked.update((key, change.producer_id) for key, _, _ in effects)
        self.size_bytes += size_of(effects)

    def end(self, producer_id: int) -> "list[Effect]":
        """The marker is in the log; returns what was prepared."""
        effects = self.by_producer.pop(producer_id, [])
        for key, _, _ in effects:
            self.locked.pop(key, None)
        self.size_bytes -= size_of(effects)
        return effects

    # -- questions ----------------------------------------------------------------------------------------------

    def check_room(self, size_bytes: int) -> None:
        """Raise OverloadedError where one more of this size is too much."""
        if len(self.by_producer) >= PREPARED_MAX or (
            self.by_producer and self.size_bytes + size_bytes > PREPARED_BYTES_MAX
        ):
            raise OverloadedError(
                f"{len(self.by_producer)} transactions of {self.size_bytes} bytes are prepared in this shard, which takes "
                f"{PREPARED_MAX} and {PREPARED_BYTES_MAX} bytes: begin again when some have ended"
            )

    def check_keys(self, keys: Iterable[bytes]) -> None:
        """Raise KeyLockedError if one of these keys is locked."""
        locked = self.locked
        for key in keys:
            if key in locked:
                raise locked_error(key)

    def check_ops(self, ops: "Sequence[TableOp]") -> None:
        """Raise KeyLockedError if an operation names a locked key, or a range with one in it."""
        locked = self.locked
        for op in ops:
            if isinstance(op, DeleteRange | DeleteOrdered):
                found = self._first_of(op)
                if found is not None:
                    raise locked_error(found)
            elif op.key in locked:
                raise locked_error(op.key)

    def first_in(self, start: bytes, end: bytes) -> bytes | None:
        """The first locked key from `start` to before `end` (empty: to the end)."""
        return min((key for key in self.locked if key >= start and (not end or key < end)), default=None)

    def first_ordered(self, start: bytes, end: bytes) -> bytes | None:
        """The first sort key of a locked key (`records.key_order`) from `start` to before `end` (empty: to the end)."""
        ordered = (sort_key(key) for key in self.locked if is_text(key))
        return min((one for one in ordered if one >= start and (not end or one < end)), default=None)

    def _first_of(self, op: "DeleteRange | DeleteOrdered") -> bytes | None:
        if isinstance(op, DeleteRange):
            return self.first_in(op.start, op.end)
        found = self.first_ordered(sort_key(op.start), sort_key(op.end) if op.end else b"")
        return None if found is None else key_of(found)


def size_of(effects: "Iterable[Effect]") -> int:
    """Bytes that effects take, about."""
    return sum(EFFECT_BYTES + len(key) + len(value or b"") for key, value, _ in effects)


def locked_error(key: bytes) -> KeyLockedError:
    """The refusal of what touches a locked key."""
    return KeyLockedError(f"key {key[:100]!r} belongs to a transaction that is about to end; ask again")
