"""A client of the API in virtual time, which holds every answer against the OpenAPI document."""

import copy
import json
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jsonschema import Draft202012Validator

from antiphon.http.api import document, routes
from tests.dashboard.looking import send


class Said(NamedTuple):
    status: int
    headers: dict[str, str]
    json: Any


@cache
def validator(name: str) -> Draft202012Validator:
    """Of a schema of the document, which takes no fields that it does not name."""
    schemas = copy.deepcopy(document.document()["components"]["schemas"])
    for schema in schemas.values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}})


def check(path: str, method: str, said: Said) -> None:
    """Is the answer as the document says?"""
    found = routes.find(path)
    name = "Problem"
    if said.status == 200:
        operation = document.document()["paths"][found[method][0].path][method.lower()]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        name = schema["$ref"].rsplit("/", 1)[1]
        assert said.headers["content-type"] == "application/json"
    else:
        assert said.headers["content-type"] == "application/problem+json"
        assert said.json["status"] == said.status
        assert len(said.json["detail"]) > 10
    validator(name).validate(said.json)
    assert said.headers.get("x-content-type-options") == "nosniff" or said.status in {401, 403, 429, 503}


async def call(
    path: str,
    body: Any = None,
    *,
    at: int = 0,
    method: str = "",
    headers: dict[str, str] | None = None,
    **query: Any,
) -> Said:
    """Ask a node; the answer was held against the document."""
    method = method or ("GET" if body is None else "POST")
    content = b"" if body is None else json.dumps(body).encode()
    lines = {"Host": f"node-{at}:7480", "Connection": "close", **(headers or {})}
    if body is not None:
        lines = {"Content-Type": "application/json", "Content-Length": str(len(content)), **lines}
    target = path + (f"?{urlencode(query)}" if query else "")
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    page = await send(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + content, at)
    said = Said(page.status, page.headers, json.loads(page.text) if page.text else None)
    if method != "HEAD":
        check(path, method, said)
    return said
