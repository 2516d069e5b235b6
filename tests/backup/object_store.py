"""An object store that speaks S3, as a process of its own: moto's server, which takes any login."""

import http.client
import json
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, urlencode

from antiphon.tools.free_ports import bind_free

NEEDED: Final = ("moto", "flask", "flask_cors", "s3fs")
MISSING: Final = [name for name in NEEDED if find_spec(name) is None]
BUCKET: Final = "backups"
START_S: Final = 60.0
# moto asks that there is one, and checks none.
LOGIN: Final = {"Authorization": "AWS4-HMAC-SHA256 Credential=nobody/20200101/us-east-1/s3/aws4_request"}


class ObjectStore:
    """One bucket. A context: the server ends with it, and all that it kept, in memory.

    What it says is in a file of `folder`.
    """

    def __init__(self, folder: Path) -> None:
        with socket.socket() as listener:
            bind_free(listener, "127.0.0.1")
            self._port: int = listener.getsockname()[1]
        self._said = folder / "moto.log"
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(words, stdout=said, stderr=said)

    def __enter__(self) -> Self:
        ends_s = time.monotonic() + START_S
        while True:
            try:
                self.ask("PUT", f"/{BUCKET}")
                return self
            except OSError:
                if time.monotonic() > ends_s or self._process.poll() is not None:
                    raise AssertionError(self._said.read_text()) from None
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)

    @property
    def options(self) -> dict[str, object]:
        """What fsspec needs to reach it."""
        return {"key": "nobody", "secret": "nothing", "endpoint_url": f"http://127.0.0.1:{self._port}"}

    @property
    def environment(self) -> dict[str, str]:
        """The same, for commands."""
        return {"ANTIPHON_ARCHIVE_OPTIONS": json.dumps(self.options)}

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A bare request. Raises OSError, AssertionError for one that is refused."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        try:
            connection.request(method, path, body, LOGIN)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        assert answer.status < 300, data
        return data

    def keys(self, prefix: str = "") -> dict[str, int]:
        """Names of objects, with their bytes."""
        found: dict[str, int] = {}
        token = ""
        while True:
            query = {"list-type": "2", "prefix": prefix, **({"continuation-token": token} if token else {})}
            tree = ET.fromstring(self.ask("GET", f"/{BUCKET}?{urlencode(query)}"))
            for one in tree.findall("{*}Contents"):
                found[one.findtext("{*}Key", "")] = int(one.findtext("{*}Size", "0"))
            token = tree.findtext("{*}NextContinuationToken", "")
            if not token:
                return found

    def read(self, key: str) -> bytes:
        """An object."""
        return self.ask("GET", f"/{BUCKET}/{quote(key)}")

    def write(self, key: str, data: bytes) -> None:
        """Put an object in its place."""
        self.ask("PUT", f"/{BUCKET}/{quote(key)}", data)
