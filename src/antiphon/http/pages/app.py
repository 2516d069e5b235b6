"""The ASGI application of the dashboard: its pages, files, errors, and what browsers are told to allow."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from antiphon.errors import AntiphonError
from antiphon.gateway.interface import Gateway
from antiphon.http.bridge import App
from antiphon.http.pages import (
    actions,
    api_page,
    groups,
    overview,
    people,
    sessions,
    subscriptions,
    tables,
    topics,
)
from antiphon.http.pages.site import Look, Site

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
GUARDS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Page = Callable[[Site, Look], Awaitable[Response]]

PAGES: Final[dict[str, Page]] = {
    "/": overview.overview,
    "/ui/topics": topics.topics,
    "/ui/topics/{name}": topics.topic,
    "/ui/topics/{name}/records": topics.records,
    "/ui/topics/{name}/record": topics.record,
    "/ui/tables/{name}": tables.rows,
    "/ui/groups": groups.groups,
    "/ui/groups/{name:path}": groups.group,
    "/ui/transactions": groups.transactions,
    "/ui/jobs": groups.jobs,
    "/ui/queries": groups.queries,
    "/ui/sessions": sessions.sessions,
    "/ui/client-metrics": subscriptions.subscriptions,
    "/ui/security": people.security,
    "/ui/nodes/{node:int}": people.node,
    "/api": api_page.api,
    "/api/": api_page.api,
}


def make_app(gateway: Gateway) -> App:
    """The application; loads and compiles its templates."""
    site = Site(gateway)
    routes = [Route(path, _page(site, page), methods=["GET"]) for path, page in PAGES.items()]
    routes += [
        Route("/ui/sample", _json(site, overview.sample), methods=["GET"]),
        Route("/ui/static/{name}", _file(site), methods=["GET"]),
        Route("/ui/actions/{action}", _page(site, actions.act), methods=["GET", "POST"]),
        Route("/ui/{rest:path}", _page(site, _not_there), methods=["GET", "POST"]),
    ]
    return Starlette(routes=routes)


def _guarded(response: Response) -> Response:
    response.headers.update(GUARDS)
    if "cache-control" not in response.headers:
        response.headers["Cache-Control"] = "no-store"
    return response


def _page(site: Site, page: Page) -> Callable[[Request], Awaitable[Response]]:
    @functools.wraps(page)
    async def endpoint(request: Request) -> Response:
        look = site.look(request)
        try:
            return _guarded(await page(site, look))
        except AntiphonError as error:
            return _guarded(site.failed(look, error))

    return endpoint


def _json(
    site: Site, work: Callable[[Site, Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return _guarded(await work(site, request))
        except AntiphonError as error:
            return _guarded(
                PlainTextResponse(f"{error.message}\n", 403 if error.code == "access_denied" else 503)
            )

    return endpoint


def _file(site: Site) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        found = site.static.get(str(request.path_params["name"]))
        if found is None:
            return _guarded(PlainTextResponse("there is no such file\n", 404))
        data, kind = found
        headers: dict[str, Any] = {"Cache-Control": "public, max-age=31536000, immutable"}
        return _guarded(Response(data, media_type=kind, headers=headers))

    return endpoint


async def _not_there(site: Site, look: Look) -> Response:
    return site.page(look, "missing.html", 404, title="No such page")
