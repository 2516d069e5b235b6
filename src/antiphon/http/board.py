"""The dashboard as the listener has it: loaded when somebody first looks, a few pages at a time, each within its time.

Its libraries are the extra `dashboard`. Where they are missing, `/` is the plain page, which says how to get them.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from antiphon.errors import AntiphonError, InvalidRequestError, NotReadyError, TimedOutError
from antiphon.gateway.gate import Gate
from antiphon.gateway.interface import Gateway
from antiphon.gateway.turns import Turns
from antiphon.http.api.problems import as_problem
from antiphon.http.bridge import App, WebAnswer, WebRequest, run
from antiphon.model.access import Operation, Resource
from antiphon.security.authorizer import Rights

PREFIX: Final = "/ui/"
API_PAGE: Final = "/api"
API: Final = "/api/"
ACTIONS_AT_ONCE: Final = 2  # that are being carried out
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
        self._free = Gate(AT_ONCE)
        self._acting = Gate(ACTIONS_AT_ONCE)
        self._loading: asyncio.Future[App] | None = None
        self._api: App | None = None
        self._log = structlog.get_logger()

    @staticmethod
    def takes(path: str) -> bool:
        """Is this a page of the dashboard, or of the API?"""
        return path in {"/", API_PAGE} or path.startswith((PREFIX, API))

    async def answer(self, request: WebRequest, rights: Rights, client: object) -> WebAnswer:
        """The page, or why there is none. Never raises. `client`: who shares turns with his other connections."""
        is_api = request.path.startswith(API) and request.path != API
        try:
            app = await self._app_of(is_api=is_api)
        except ImportError:
            return self._without(request, rights)
        # An action waits for the coordinator: it must not keep those from their pages who only look.
        gate = self._acting if request.method == "POST" else self._free
        await gate.enter(client)
        try:
            await self._turns.next(object(), client)
            answer = await self._made(app, request, rights)
        finally:
            gate.leave()
        if is_api and dict(answer.headers).get("Content-Type") == _TEXT[0][1]:
            status, kind, content = as_problem(answer.status, answer.body)
            return WebAnswer(status, (("Content-Type", kind), ("X-Content-Type-Options", "nosniff")), content)
        return answer

    async def _made(self, app: App, request: WebRequest, rights: Rights) -> WebAnswer:
        state: dict[str, Any] = {"rights": rights, "host": request.client}
        try:
            found = await run(app, request._replace(state=state), PAGE_S)
            return found._replace(mutated=state.get("mutated", 0))
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

    async def _app_of(self, *, is_api: bool) -> App:
        """What answers. The API needs no library that may be missing; it is loaded in a thread all the same."""
        if not is_api:
            return await self._app()
        if self._api is None:
            self._api = await asyncio.get_running_loop().run_in_executor(None, self._load_api)
        return self._api

    def _load_api(self) -> App:
        from antiphon.http.api.app import make_api
        from antiphon.http.api.document import encoded

        encoded()  # the schemas of all types take a while to make
        return make_api(self._gateway)

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
