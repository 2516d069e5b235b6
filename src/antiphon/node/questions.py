"""What one node asks another outside of replication, and who answers that here.

A listener serves such questions as one of its parts does (the coordinator of transactions): it says so with `serve`. A
question to this node itself takes no connection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from antiphon.errors import (
    AntiphonError,
    InternalError,
    NotReadyError,
    OverloadedError,
    TimedOutError,
    UnavailableError,
)

if TYPE_CHECKING:
    from antiphon.gateway.peers import Answered
    from antiphon.node.peers import PeerLink

ASKED_MAX: Final = 10_000  # questions of other nodes under work here


class Questions:
    """See `gateway.interface.NodeQuestions`. `link` gives the connection to a node, or UnavailableError."""

    def __init__(self, node_id: int, link: "Callable[[int], PeerLink]") -> None:
        self._node_id = node_id
        self._link = link
        self._serve: Callable[[Any], Awaitable[Any]] | None = None
        self._underway: set[asyncio.Task[None]] = set()

    def serve(self, answer: Callable[[Any], Awaitable[Any]] | None) -> None:
        """See NodeQuestions."""
        self._serve = answer

    async def ask(self, node_id: int, body: Any, timeout_s: float) -> Any:
        """See NodeQuestions."""
        if node_id != self._node_id:
            return await self._link(node_id).ask(body, timeout_s)
        try:
            return await asyncio.wait_for(self._answer(body), timeout_s)
        except AntiphonError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            raise TimedOutError(f"node {node_id} did not answer itself within {timeout_s:.1f} s") from None

    async def ask_bulk(self, node_id: int, body: Any, timeout_s: float) -> tuple[Any, memoryview]:
        """See NodeQuestions."""
        link = self._link(node_id)
        if not link.up:
            raise UnavailableError(f"no connection to node {node_id}")
        answer: asyncio.Future[tuple[Any, memoryview]] = asyncio.get_running_loop().create_future()

        def answered(reply: Any, bulk: memoryview) -> None:
            if answer.done():
                return
            if isinstance(reply, Exception):
                answer.set_exception(reply)
            else:
                answer.set_result((reply, bulk))

        request_id = link.forward(body, memoryview(b""), answered)
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except AntiphonError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            raise TimedOutError(f"node {node_id} did not answer within {timeout_s:.1f} s") from None
        finally:
            link.forget(request_id)

    def asked(self, body: Any, answered: "Answered") -> None:
        """Another node asks."""
        if len(self._underway) >= ASKED_MAX:
            answered(OverloadedError(f"node {self._node_id} answers {ASKED_MAX} questions of nodes already"))
            return
        task = asyncio.get_running_loop().create_task(self._work(body, answered), name="question of a node")
        self._underway.add(task)
        task.add_done_callback(self._underway.discard)

    async def _work(self, body: Any, answered: "Answered") -> None:
        try:
            reply = await self._answer(body)
        except AntiphonError as error:
            answered(error)
        except Exception:  # noqa: BLE001 (whatever it is, it is logged, and the other node is answered)
            structlog.get_logger().exception("question of a node failed", kind=type(body).__name__)
            answered(InternalError("the node failed; its log says how"))
        else:
            answered(reply)

    async def _answer(self, body: Any) -> Any:
        if self._serve is None:
            raise NotReadyError(f"node {self._node_id} does not answer this now", kind=type(body).__name__)
        return await self._serve(body)
