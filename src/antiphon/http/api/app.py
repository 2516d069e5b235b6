"""The API as an ASGI application: it finds the route, holds parameters against their types, and encodes the answer."""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from antiphon.errors import UNDECODABLE, AntiphonError, NotReadyError
from antiphon.gateway.interface import Gateway
from antiphon.http.api import document, problems, routes
from antiphon.http.api.call import Call
from antiphon.http.api.problems import PROBLEM, AskedWronglyError
from antiphon.http.bridge import App, Message
from antiphon.http.pages.asking import Asker
from antiphon.http.senders import foreign
from antiphon.model.metadata import ClusterMeta

JSON: Final = "application/json"
FIELDS_MAX: Final = 50  # of a query
GUARDS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_WHERE: Final = re.compile(r" - at `\$\.?([\w.\[\]]*)`$")

Send = Callable[[Message], Awaitable[None]]


def make_api(gateway: Gateway) -> App:
    """The application. The state of a request has `rights`, and takes how many partitions it makes as `mutated`."""

    async def app(
        scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]], send: Send
    ) -> None:
        try:
            status, kind, content = 200, JSON, await _answer(gateway, scope, receive)
        except AskedWronglyError as error:
            status, kind, content = error.problem.status, PROBLEM, problems.encoded(error.problem)
        except AntiphonError as error:
            found = problems.of_error(error)
            status, kind, content = found.status, PROBLEM, problems.encoded(found)
        headers = [(b"content-type", kind.encode()), *GUARDS]
        if status == 405:
            headers.append((b"allow", ", ".join(_methods(scope)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return app


def _path(scope: MutableMapping[str, Any]) -> str:
    raw: bytes = scope["raw_path"]
    return raw.decode("latin-1")


def _methods(scope: MutableMapping[str, Any]) -> list[str]:
    known = {"GET"} if _path(scope) == routes.DOCUMENT else set(routes.find(_path(scope)))
    return sorted(known | ({"HEAD"} if "GET" in known else set()))


async def _answer(
    gateway: Gateway, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]]
) -> bytes:
    route, values = _route(scope)
    if route is None:
        return document.encoded()
    if gateway.metadata_version < 0:
        raise NotReadyError(
            f"node {gateway.node_id} was just started and knows no metadata yet: ask another node, or again"
        )
    state: dict[str, Any] = scope["state"]

    def mutates(partitions: int) -> None:
        state["mutated"] = partitions

    asked = _asked(route, values, scope["query_string"])
    told = [asked]
    if route.body is not None:
        _check_sender(gateway.metadata, scope)
        told.append(_body(route.body, scope, (await receive())["body"]))
    call = Call(gateway, state["rights"], Asker(gateway, state["rights"]), mutates, state.get("host", ""))
    return msgspec.json.encode(await route.does(call, *told)) + b"\n"


def _route(scope: MutableMapping[str, Any]) -> tuple[routes.Route | None, dict[str, str]]:
    """The route; None: the document."""
    path, method = _path(scope), "GET" if scope["method"] == "HEAD" else scope["method"]
    try:
        found = routes.find(path)
    except UnicodeDecodeError:
        raise AskedWronglyError("the path is not UTF-8 in percent-encoding", asked=path) from None
    if path == routes.DOCUMENT and method == "GET":
        return None, {}
    if method in found:
        return found[method]
    if found or path == routes.DOCUMENT:
        allowed = ", ".join(_methods(scope))
        raise AskedWronglyError(
            f"{scope['method']} was asked of {path}, which takes {allowed}",
            status=405,
            code="method_not_allowed",
            asked=scope["method"],
            do=allowed,
        )
    raise AskedWronglyError(
        f"there is nothing at {path[:200]}: {routes.DOCUMENT} and the page /api say what there is",
        status=404,
        code="unknown_operation",
        asked=path,
    )


def _asked(route: routes.Route, values: dict[str, str], query: bytes) -> msgspec.Struct:
    """What path and query say, as the route's type has it."""
    try:
        given = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError:
        raise AskedWronglyError(
            f"the query cannot be read: it has at most {FIELDS_MAX} fields, name=value joined by &, in UTF-8 and "
            "percent-encoding"
        ) from None
    known = [name for name in route.asks.__struct_fields__ if name not in route.in_path]
    found: dict[str, str] = dict(values)
    for name, value in given:
        if name not in known:
            raise AskedWronglyError(
                f"{name[:100]!r} is no parameter of {route.method} {route.path}; there are {', '.join(known) or 'none'}",
                parameter=name[:100],
                asked=value,
                do=", ".join(known) or "no parameter",
            )
        if name in found:
            raise AskedWronglyError(f"{name} is given twice: give it once", parameter=name, asked=value)
        found[name] = value
    try:
        return msgspec.convert(found, route.asks, strict=False)
    except UNDECODABLE as error:
        raise _misfit(route.asks, str(error), found) from None


def _body(kind: type[msgspec.Struct], scope: MutableMapping[str, Any], content: bytes) -> msgspec.Struct:
    """What the body says, as its type has it."""
    headers = dict(scope["headers"])
    said = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if b"transfer-encoding" in headers:
        raise AskedWronglyError(
            "a body in chunks is not read: send its Content-Length", status=411, code="length_required"
        )
    if said != JSON.encode():
        # A form of another site could send any other type, with the login that the browser keeps.
        raise AskedWronglyError(
            f"the body has to be {JSON} and says that it is {said.decode('latin-1') or 'nothing'}: send "
            f"Content-Type: {JSON}, and {{}} where there is nothing to say",
            status=415,
            code="unsupported_media_type",
            asked=said.decode("latin-1"),
            do=JSON,
        )
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except UNDECODABLE as error:
        raise _misfit(kind, str(error), {}) from None


def _misfit(kind: type[msgspec.Struct], text: str, given: dict[str, str]) -> AskedWronglyError:
    """What is said of a value that does not fit its type."""
    where = _WHERE.search(text)
    name = where[1] if where is not None else ""
    reason = text[: where.start()] if where is not None else text
    about = document.description_of(kind, name.split(".")[0].split("[")[0])
    asked = given.get(name)
    what = f"{name}={asked[:100]!r}" if name and asked is not None else name or "what was sent"
    return AskedWronglyError(
        f"{what} does not fit: {reason}" + (f"; it is: {about}" if about else ""),
        parameter=name or None,
        asked=asked,
        do=about or reason,
    )


def _check_sender(meta: ClusterMeta, scope: MutableMapping[str, Any]) -> None:
    """Refuse what a page of another site had the browser send: it may be where no login keeps it out."""
    headers = dict(scope["headers"])
    why = foreign(meta, headers, logged_in=scope["state"]["rights"].limited)
    if why is not None:
        asked = headers.get(b"origin") or headers.get(b"host", b"")
        raise AskedWronglyError(why, status=403, code="access_denied", asked=asked.decode("latin-1"))
