"""A counter: a row whose value is a number, changed by conditional puts."""

from antiphon.client.aio import AsyncClient
from antiphon.client.table import ABSENT
from antiphon.errors import InvalidRequestError, VersionMismatchError
from antiphon.recipes.waiting import Looks


class AsyncCounter:
    """A number that many clients add to.

    number = await AsyncCounter(db, "counters", "orders").add()

    Guaranteed: each `add` that returned is counted once, whatever fails meanwhile; the results of `add(1)` are all
    different, and rise in the order in which they are carried out. `value` is linearizable.

    Not guaranteed: that no number is left out. An `add` that raised TimedOutError may have been counted. And it is no
    sharded counter: every `add` waits for a commit of its row, and those who are late try again.
    """

    def __init__(self, db: AsyncClient, table: str, name: str, *, start: int = 0) -> None:
        """`name` is the row's key; `start` is the value while there is none."""
        self.name = name
        self.start = start
        self._table = db.table(table)

    async def value(self) -> int:
        """The value now."""
        row = await self._table.find(self.name)
        return self.start if row is None else self._number(row.value)

    async def add(self, amount: int = 1, *, timeout_s: float | None = None) -> int:
        """Add to it; returns the new value. Raises TimedOutError: it may have been counted then."""
        looks = Looks(timeout_s)
        while True:
            row = await self._table.find(self.name)
            number = (self.start if row is None else self._number(row.value)) + amount
            expected = ABSENT if row is None else row.version.id
            try:
                await self._table.put(self.name, b"%d" % number, expected_version=expected)
            except VersionMismatchError:
                await looks.pause(f"counter {self.name!r} was changed by others, and not by this one")
            else:
                return number

    def _number(self, value: bytes | None) -> int:
        try:
            return int(value or b"")
        except ValueError:
            raise InvalidRequestError(
                f"key {self.name!r} holds no number: {(value or b'')[:40]!r}; a counter needs a key of its own"
            ) from None
