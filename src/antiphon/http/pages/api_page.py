"""The page `/api`: every operation of the API for people, from the table that the OpenAPI document is made from."""

import json
from typing import Any

from starlette.responses import Response

from antiphon.http.api import document, routes
from antiphon.http.api.problems import STATUS_OF
from antiphon.http.api.routes import Route
from antiphon.http.pages.site import Look, Site


async def api(site: Site, look: Look) -> Response:
    """The page. Whoever has logged in may read it: it tells nothing of the cluster."""
    base = f"{look.request.url.scheme}://{look.request.url.netloc}"
    parts = [
        (tag, title, [_row(one, base) for one in routes.ROUTES if one.tag == tag])
        for tag, title in document.TAGS.items()
    ]
    schemas = document.document()["components"]["schemas"]
    types = [
        (name, schema.get("description", ""), document.shown_fields(schema.get("properties", {})))
        for name, schema in sorted(schemas.items())
    ]
    return site.page(
        look,
        "api.html",
        title="API",
        about=document.ABOUT,
        document=routes.DOCUMENT,
        parts=parts,
        types=types,
        problems=sorted(STATUS_OF.items()),
    )


def _row(route: Route, base: str) -> dict[str, Any]:
    return {
        "route": route,
        "parameters": [_parameter(one) for one in document.parameters_of(route)],
        "body": [] if route.body is None else document.shown_schema(route.body),
        "example": document.example_of(route, base),
        "answer": document.schema_of(route.answers)["$ref"].rsplit("/", 1)[1],
    }


def _parameter(one: dict[str, Any]) -> tuple[str, str, str, str, str]:
    schema = one["schema"]
    default = "" if one["required"] else json.dumps(schema.get("default"))
    return one["name"], one["in"], document.shown_type(schema), default, one.get("description", "")
