"""A state machine on a shard of a topic, for programs that block: see `antiphon.client.log_backed_store_aio`."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

from antiphon.client.closing import Closes
from antiphon.client.log_backed_store_aio import Applied, AsyncLogBackedStore, Reads

if TYPE_CHECKING:
    from antiphon.client.sync import Client

__all__ = ["Applied", "AsyncLogBackedStore", "LogBackedStore"]

StateT = TypeVar("StateT")


class LogBackedStore(Closes, Generic[StateT]):
    """The blocking face of `AsyncLogBackedStore`: safe to use from several threads, whose operations travel together.

    with antiphon.LogBackedStore(db, "accounts", initial={}, apply=apply, validate=validate) as store:
        applied = store.submit(b"...")
    """

    def __init__(
        self,
        client: "Client",
        topic: str,
        *,
        initial: StateT,
        apply: Callable[[StateT, bytes], StateT],
        validate: Callable[[StateT, bytes], object] | None = None,
        shard: int = 0,
        start_offset: int = 0,
        timeout_s: float = 30.0,
        **reads: Unpack[Reads],
    ) -> None:
        """Returns when the log is read to its end. `apply` and `validate` are called in the client's own thread, and must
        not use the client. See `AsyncLogBackedStore` for the arguments and errors.
        """

        async def make() -> AsyncLogBackedStore[StateT]:
            store = AsyncLogBackedStore(
                client.aio,
                topic,
                initial=initial,
                apply=apply,
                validate=validate,
                shard=shard,
                start_offset=start_offset,
                timeout_s=timeout_s,
                **reads,
            )
            await store.start()
            return store

        self._client = client
        self._store = client.run(make())

    @property
    def state(self) -> StateT:
        """The state as this store knows it, which may be behind the log: `catch_up` to be sure."""
        return self._store.state

    @property
    def upcoming_offset(self) -> int:
        """The next offset to read, or to write."""
        return self._store.upcoming_offset

    def catch_up(self, *, timeout_s: float | None = None) -> StateT:
        """Read the log to its end of now and return the state there: a linearizable read."""
        return self._client.run(self._store.catch_up(timeout_s=timeout_s))

    def submit(
        self, operation: bytes, *, reevaluate: bool = False, timeout_s: float | None = None
    ) -> Applied[StateT]:
        """Append one operation if it is permitted at the end of the log. See `AsyncLogBackedStore.submit`.

        Raises what `validate` raised, OffsetMismatchError when another store was first, TimedOutError.
        """
        return self._client.run(self._store.submit(operation, reevaluate=reevaluate, timeout_s=timeout_s))

    def submit_many(
        self, operations: Iterable[bytes], *, reevaluate: bool = False, timeout_s: float | None = None
    ) -> list[Applied[StateT]]:
        """Several operations, each on its own, in their order; the first error is raised after all have ended."""
        return self._client.run(
            self._store.submit_many(list(operations), reevaluate=reevaluate, timeout_s=timeout_s)
        )

    def close(self) -> None:
        """Take no more operations, and fail those that wait. A second close does nothing."""
        self._client.run(self._store.close())
