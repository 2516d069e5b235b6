"""Requests of a backup: holds of shards, copies of their state."""

from collections.abc import Callable
from typing import Any, Final

from antiphon.errors import AntiphonError
from antiphon.model.backup import (
    PIECE_BYTES,
    ConfirmHold,
    CopyState,
    DropState,
    HoldShard,
    ReadState,
    ReleaseHold,
)
from antiphon.model.requests import Done
from antiphon.native.exchange import Exchange


def hold_shard(exchange: Exchange, request_id: int, body: HoldShard, _payload: memoryview) -> None:
    """Hold a shard; answered when all that is appended is committed."""
    done = exchange.begin(request_id)
    try:
        exchange.gateway.backups.hold(body, done)
    except BaseException:
        exchange.end()
        raise


def confirm_hold(exchange: Exchange, request_id: int, body: ConfirmHold, _payload: memoryview) -> None:
    """Let go of a shard, and say whether it was held all the time."""
    done = exchange.begin(request_id)
    try:
        exchange.gateway.backups.confirm(body, done)
    except BaseException:
        exchange.end()
        raise


def release_hold(exchange: Exchange, request_id: int, body: ReleaseHold, _payload: memoryview) -> None:
    """Let go of a shard."""
    exchange.gateway.backups.release(body)
    exchange.reply(request_id, Done())


def copy_state(exchange: Exchange, request_id: int, body: CopyState, _payload: memoryview) -> None:
    """Copy the state of a shard; answered when the copy is whole."""
    exchange.later(request_id, exchange.gateway.backups.copy(body))


def read_state(exchange: Exchange, request_id: int, body: ReadState, _payload: memoryview) -> None:
    """Read a piece of a copy when there is room for it."""

    async def run() -> None:
        try:
            data = await exchange.gateway.backups.read(body)
            exchange.reply(request_id, Done(), [data])
        except AntiphonError as error:
            exchange.fail(request_id, error)
        except OSError as error:
            exchange.fail(request_id, exchange.bug(error))
        finally:
            exchange.reserve(-PIECE_BYTES)  # the answer counts by now
            exchange.end()

    def begin() -> None:
        exchange.reserve(PIECE_BYTES)
        exchange.spawn(run())

    exchange.begin(request_id)
    exchange.when_room(begin, lambda: PIECE_BYTES)


def drop_state(exchange: Exchange, request_id: int, body: DropState, _payload: memoryview) -> None:
    """Let go of a copy."""
    exchange.gateway.backups.drop(body)
    exchange.reply(request_id, Done())


BACKUP_HANDLERS: Final[dict[type, Callable[[Exchange, int, Any, memoryview], None]]] = {
    HoldShard: hold_shard,
    ConfirmHold: confirm_hold,
    ReleaseHold: release_hold,
    CopyState: copy_state,
    ReadState: read_state,
    DropState: drop_state,
}
