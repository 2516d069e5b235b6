"""A transaction that changes rows of one shard, and does nothing else, as the one request that it can be.

The shard's leader judges and appends it at one moment: what was read is so then, or nothing is written. No coordinator is
asked, and nothing is locked.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from antiphon.client.routing.outcomes import is_known
from antiphon.errors import AntiphonError, KeyNotFoundError, TimedOutError, VersionMismatchError
from antiphon.model.metadata import is_multi
from antiphon.model.requests import Check, Delete, Put

if TYPE_CHECKING:
    from antiphon.client.table_core import TableCore
    from antiphon.model.rows import Version

OPS_MAX: Final = 1_000  # as a shard takes of other transactions
UNCLEAN: Final = "unclean.leader.election.enable"


class OneWrite:
    """See the module's text.

    Attributes:
        checks: what was read.
        ops: what was asked for.
        unknown: the error that says that nobody knows whether it was carried out; None unless that is so.
    """

    def __init__(
        self, core: "TableCore", checks: Sequence[Check], ops: Sequence[Put | Delete | Check]
    ) -> None:
        self._core = core
        self.checks = checks
        self.ops = ops
        self.unknown: TimedOutError | None = None

    async def is_possible(self) -> bool:
        """Do all keys belong to one shard, of a table that takes part in transactions?

        One that takes no part is for the usual way, which says why.
        """
        meta = await self._core.described_by()
        if is_multi(meta) or meta.config.get(UNCLEAN) == "true":
            return False
        shards = {self._core.places.place_of(op.key)[0] for op in (*self.checks, *self.ops)}
        return len(shards) == 1 and len(self.checks) + len(self.ops) <= OPS_MAX

    async def send(self, limit_s: float) -> "list[Version | None]":
        """Carry it out: the versions of `ops`. Raises what a commit raises; `unknown` where nobody knows."""
        try:
            results = await self._core.together([*self.checks, *self.ops], limit_s)
        except AntiphonError as error:
            raise self._judged(error) from error
        except asyncio.CancelledError:
            self._not_known("it was interrupted")
            raise
        return results[len(self.checks) :]

    def _judged(self, error: AntiphonError) -> AntiphonError:
        """What an error means: nothing was written, or that is not known."""
        if isinstance(error, VersionMismatchError | KeyNotFoundError):
            at = error.details.pop("operation") - len(self.checks)
            error.details["table"] = self._core.name
            if at >= 0:
                error.details["operation"] = at
            else:
                error.add_note("it was read in this transaction, and has changed since: begin again")
        return error if is_known(error) else self._not_known(error.message)

    def _not_known(self, why: str) -> TimedOutError:
        self.unknown = TimedOutError(
            f"whether the transaction was committed is not known: {why}; read the rows that it changes",
            earlier_try=True,
        )
        return self.unknown
