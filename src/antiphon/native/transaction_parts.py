"""Requests that bring a shard into a transaction: they wait until its coordinator has said that the shard is part of it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antiphon.errors import AntiphonError, NotLeaderError
from antiphon.model.requests import AppendBatch
from antiphon.model.table_transactions import PrepareWrite
from antiphon.native.exchange import Exchange
from antiphon.transactions.refusals import error_of

if TYPE_CHECKING:
    from antiphon.transactions.asking import Numbered


async def once_joined(
    exchange: Exchange,
    request: tuple[int, AppendBatch | PrepareWrite, memoryview],
    asking: "asyncio.Task[Numbered]",
    done: Callable[[Any], None],
    carry_out: Callable[[int], None],
) -> None:
    """Carry out a request with the number of its transaction, once that is known; the client is not believed about it.

    `request`: its id, its body and its payload.
    """
    request_id, body, payload = request
    try:
        number, refused = await asyncio.shield(asking)
        if refused is not None:
            raise error_of(refused, body.transactional_id)
        carry_out(number)
    except NotLeaderError as error:
        if exchange.forward(request_id, body, payload, error):
            exchange.end()
        else:
            done(error)
    except AntiphonError as error:
        done(error)
    except Exception as error:  # noqa: BLE001 - answered as a bug of this node
        done(exchange.bug(error))
