"""A catalog that speaks Iceberg's REST protocol, over one in SQLite: as much of the protocol as a lake table needs."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

CODES = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}
TOKEN = "of-the-lake"


class RestCatalog:
    """`unanswered`: so many commits to come are carried out, and their answers are lost on the way (504)."""

    def __init__(self, folder: Path) -> None:
        self.uri = ""
        self.unanswered = 0
        self.commits = 0
        self._catalog = load_catalog(
            "behind", type="sql", uri=f"sqlite:///{folder}/rest.db", warehouse=f"file://{folder}"
        )

    def answer(self, method: str, path: list[str], body: bytes) -> tuple[int, Any]:
        """Status and body."""
        try:
            return self._answer(method, path, body)
        except tuple(CODES) as error:
            code = CODES[type(error)]
            return code, {"error": {"message": str(error), "type": type(error).__name__, "code": code}}

    def _answer(self, method: str, path: list[str], body: bytes) -> tuple[int, Any]:
        match method, path:
            case "GET", ["v1", "config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "POST", ["v1", "namespaces"]:
                name = json.loads(body)["namespace"]
                self._catalog.create_namespace(tuple(name))
                return 200, {"namespace": name, "properties": {}}
            case "POST", ["v1", "namespaces", space, "tables"]:
                wanted = json.loads(body)
                schema = Schema.model_validate(wanted["schema"])
                return 200, _table(self._catalog.create_table((space, wanted["name"]), schema))
            case "GET", ["v1", "namespaces", space, "tables", name]:
                return 200, _table(self._catalog.load_table((space, name)))
            case "POST", ["v1", "namespaces", space, "tables", name]:
                asked = CommitTableRequest.model_validate_json(body)
                table = self._catalog.load_table((space, name))
                self._catalog.commit_table(table, asked.requirements, asked.updates)
                self.commits += 1
                if self.unanswered:
                    self.unanswered -= 1
                    return 504, {"error": {"message": "lost", "type": "Timeout", "code": 504}}
                return 200, _table(self._catalog.load_table((space, name)))
        return 404, {"error": {"message": "/".join(path), "type": "NoSuchNamespaceException", "code": 404}}

    def close(self) -> None:
        """Close what it is made over."""
        self._catalog.close()


def _table(table: Any) -> Any:
    found = TableResponse(metadata=table.metadata, metadata_location=table.metadata_location)
    return json.loads(found.model_dump_json(by_alias=True, exclude_none=True))


@contextmanager
def serve(folder: Path) -> Iterator[RestCatalog]:
    """One on a port of its own; who has no token is refused."""
    catalog = RestCatalog(folder)

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = [part for part in self.path.partition("?")[0].split("/") if part]
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, found = (
                    401,
                    {"error": {"message": "no", "type": "NotAuthorizedException", "code": 401}},
                )
            else:
                status, found = catalog.answer(self.command, path, body)
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_HEAD = _do  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    catalog.uri = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield catalog
    finally:
        server.shutdown()
        server.server_close()
        catalog.close()
