"""The dashboard as the listener has it: loaded when somebody first looks, a few pages at a time, each within its time.

Its libraries are the extra `dashboard`. Where they are missing, `/` is the plain page, which says how to get them.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from antiphon.errors import AntiphonError, InvalidRequestError, NotReadyError, TimedOutError
from antiphon.gateway.interface import Gateway
from antiphon.gateway.turns import Turns
from antiphon.http.bridge import App, WebAnswer, WebRequest, run
from antiphon.model.access import Operation, Resource
from antiphon.security.authorizer import Rights

PREFIX: Final = "/ui/"
AT_ONCE: Final = 4  # pages that are being made
PAGE_S: Final = 10.0
MISSING: Final = "the dashboard needs more: pip install 'antiphon[dashboard]', and restart this node"
_TEXT: Final = (("Content-Type", "text/plain; charset=utf-8"),)
_HTML: Final = (("Content-Type", "text/html; charset=utf-8"),)


class Board:
    """See the module's text.

    Args:
        gateway: the node.
        plain: makes the page for where the libraries are missing, given a note on it.
        turns: of the listener.
    """

    def __init__(self, gateway: Gateway, plain: Callable[[str], bytes], turns: Turns) -> None:
        self._gateway = gateway
        self._plain = plain
        self._turns = turns
        self._free = asyncio.Semaphore(AT_ONCE)
        self._loading: asyncio.Future[App] | None = None
        self._log = structlog.get_logger()

    @staticmethod
    def takes(path: str) -> bool:
        """Is this a page of the dashboard?"""
        return path == "/" or path.startswith(PREFIX)

    async def answer(self, request: WebRequest, rights: Rights) -> WebAnswer:
        """The page, or why there is none. Never raises."""
        try:
            app = await self._app()
        except ImportError:
            return self._without(request, rights)
        async with self._free:
            await self._turns.next(self)
            try:
                return await run(app, request._replace(state={"rights": rights}), PAGE_S)
            except TimedOutError as error:
                return WebAnswer(503, _TEXT, f"{error.message}: try again\n".encode())
            except InvalidRequestError as error:
                return WebAnswer(400, _TEXT, f"{error.message}\n".encode())
            except AntiphonError as error:
                return WebAnswer(500, _TEXT, f"{error.message}\n".encode())
            except Exception as error:  # noqa: BLE001 - a page that fails must not take the connection along
                self._log.exception("dashboard_page_failed", path=request.path)
                text = f"{type(error).__name__}: the node's log says where (dashboard_page_failed)\n"
                return WebAnswer(500, _TEXT, text.encode())

    async def _app(self) -> App:
        """The application; made in a thread, for its libraries take a while to load. Raises ImportError."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
        return await asyncio.shield(self._loading)

    def _load(self) -> App:
        from antiphon.http.pages.app import make_app

        return make_app(self._gateway)

    def _without(self, request: WebRequest, rights: Rights) -> WebAnswer:
        if request.path != "/":
            return WebAnswer(503, _TEXT, f"{MISSING}\n".encode())
        try:
            if not rights.may(Operation.DESCRIBE, Resource.CLUSTER):
                return WebAnswer(403, _TEXT, b"this page takes the right to describe the cluster\n")
        except NotReadyError as error:
            return WebAnswer(503, _TEXT, f"{error.message}\n".encode())
        return WebAnswer(200, _HTML, self._plain(MISSING))
