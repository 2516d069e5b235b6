"""What all pages share: the templates, who looks, answers in HTML, errors that say what to do, what is paged."""

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from antiphon.errors import AntiphonError
from antiphon.gateway.interface import Gateway
from antiphon.http.api.problems import status_of
from antiphon.http.pages import words
from antiphon.http.pages.action_table import done_by
from antiphon.http.pages.asking import Asker
from antiphon.model.access import Operation, Resource
from antiphon.security.authorizer import Rights

HERE: Final = Path(__file__).parent.parent
PAGE_ROWS: Final = 50
TEXT_MAX: Final = 1_024  # of what a client asks for in one field
_CODE: Final = re.compile(r"`([^`]*)`")
TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class Paged(NamedTuple):
    """A piece of a list: where it begins, how many there are in all, and how many a page has."""

    rows: Sequence[Any]
    start: int
    total: int
    size: int = PAGE_ROWS

    @property
    def end(self) -> int:
        """After the last row."""
        return self.start + len(self.rows)

    @property
    def before(self) -> int | None:
        """Where the page before this one begins."""
        return max(0, self.start - self.size) if self.start else None

    @property
    def after(self) -> int | None:
        """Where the next page begins."""
        return self.end if self.end < self.total else None


def paged(rows: Sequence[Any], start: int, size: int = PAGE_ROWS) -> Paged:
    """One page of what is there."""
    start = min(max(0, start), max(0, len(rows) - 1))
    return Paged(rows[start : start + size], start, len(rows), size)


class Look(NamedTuple):
    """One request for a page: of whom, and whom it can ask."""

    request: Request
    rights: Rights
    asker: Asker

    @property
    def may(self) -> dict[str, bool]:
        """Which actions on the cluster are offered; whoever sends one is asked for its rights all the same."""
        offered = {
            "may_act": Operation.ALTER,
            "may_configure": Operation.ALTER_CONFIGS,
            "may_create": Operation.CREATE,
        }
        return {name: self.rights.sees(one, Resource.CLUSTER) for name, one in offered.items()}

    def text(self, name: str) -> str:
        """A field of the query, cut to what a field may be."""
        return str(self.request.query_params.get(name, "")).strip()[:TEXT_MAX]

    def whole(self, name: str, default: int) -> int:
        """A field that is a whole number; the default where it is none."""
        text = self.text(name)
        return int(text) if text.lstrip("-").isdigit() and len(text) < 20 and text.count("-") < 2 else default


@functools.cache
def _static() -> dict[str, tuple[bytes, str]]:
    return {
        path.name: (path.read_bytes(), TYPES[path.suffix])
        for path in sorted((HERE / "static").iterdir())
        if path.suffix in TYPES
    }


def _ticks(text: str) -> Markup:
    """Words of the program with what stands in back-ticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - it is escaped


@functools.cache
def _templates() -> Environment:
    """All templates, compiled, once in a process: that takes a quarter of a second, so it is done off the event loop."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "num": words.number,
        "size": words.size,
        "ago": words.ago,
        "moment": words.moment,
        "lasted": words.lasted,
        "ticks": _ticks,
        "seconds": words.seconds,
        "safe_text": words.safe,
    }
    for path in sorted((HERE / "templates").iterdir()):
        found.get_template(path.name)
    return found


class Site:
    """See the module's text."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.static = _static()
        parts = b"".join(data for data, _ in self.static.values())
        self.static_version = hashlib.blake2b(parts, digest_size=6).hexdigest()
        self._templates = _templates()

    def look(self, request: Request) -> Look:
        """Who looks."""
        rights: Rights = request.state.rights
        return Look(request, rights, Asker(self.gateway, rights))

    def page(self, look: Look, template: str, code: int = 200, **values: Any) -> Response:
        """A page. `values` are for its template."""
        meta = self.gateway.metadata
        request = look.request
        html = self._templates.get_template(template).render(
            static_version=self.static_version,
            node_id=self.gateway.node_id,
            cluster_id=meta.cluster_id,
            nodes=meta.nodes,
            who=str(look.rights.principal) if look.rights.limited else "",
            path=request.url.path,
            here=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            query=dict(request.query_params),
            did=done_by(look.text("did")),
            **look.may,
            **values,
        )
        return HTMLResponse(html, code)

    def failed(self, look: Look, error: AntiphonError) -> Response:
        """A page that says what went wrong and what to do."""
        status = status_of(error)
        return self.page(look, "error.html", status, error=error, status=status, title="Not shown")
