"""A monitor that asks nodes for their pages over HTTP: who answers says 200 (or that it is not well), and can be read.

Where the libraries of the dashboard are not installed, its pages have to say how to get them.
"""

import asyncio
import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from antiphon.http.board import MISSING
from antiphon.simulation.cluster.drawing import Drawn, with_listeners
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import Workload
from antiphon.simulation.cluster.world import HTTP_PORT
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

DASHBOARD: Final = ("/", "/ui/topics", "/ui/topics?internal=1&sort=shards", "/ui/nope")
# Others are asked for what these show, and may not answer; topics that are not known yet are not there.
OF_OTHERS: Final = (
    "/ui/nodes/0",
    "/ui/topics/default",
    "/ui/topics/default/records",
    "/ui/tables/default",
    "/ui/groups",
    "/ui/groups/nobody",
    "/ui/transactions",
    "/ui/sessions",
    "/ui/jobs",
    "/ui/queries",
    "/ui/security",
    "/ui/actions/create_topic",
    "/ui/actions/add_user",
    "/ui/actions/set_quota",
    "/ui/actions/elect_leader?topic=default&shard=0",
    "/api",
)
PAGES: Final = ("/healthz", "/metrics", "/topics", "/status", "/ui/sample", *DASHBOARD, *OF_OTHERS)
HAS_DASHBOARD: Final = all(find_spec(name) is not None for name in ("jinja2", "starlette"))
PATIENCE_S: Final = 5.0
PAUSE_S: Final = 0.3
OK, NOT_UNDERSTOOD, NOT_FOUND, NOT_WELL = 200, 400, 404, 503


@workload("http_clients", 16, Drawn(with_listeners(0, 1), "doors", 4), logs_in=False)
class HttpWorkload(Workload):
    """A monitor asks for `/healthz`, `/metrics`, `/topics`, `/status`, and for all kinds of pages of the dashboard.

    Checked: status 200 (`/healthz` also 503, and pages of what other nodes know), and a well-formed page.
    """

    may_be_killed = False

    def __init__(self, cluster: "SimulatedCluster", name: str = "monitor") -> None:
        super().__init__(cluster, name)
        self.outcomes = {"pages": 0, "no_page": 0}

    async def _work(self, process: "Process", _number: int) -> None:
        draw = process.random
        while not self.stopped:
            machine, page = draw.choice(self.cluster.machines), draw.choice(PAGES)
            try:
                reply = await asyncio.wait_for(get_page(machine.host, page), PATIENCE_S)
            except (OSError, TimeoutError):
                self.outcomes["no_page"] += 1
            else:
                self.outcomes["pages"] += 1
                self._judge(machine.host, page, reply)
            await asyncio.sleep(draw.uniform(0.0, PAUSE_S))

    def _judge(self, host: str, page: str, reply: bytes) -> None:
        head, found, body = reply.partition(b"\r\n\r\n")
        if not found:
            return  # the node went down in the middle of its answer
        status = int(head.split(b" ", 2)[1])
        allowed = {OK, NOT_WELL} if page == "/healthz" else {NOT_FOUND} if page == "/ui/nope" else {OK}
        if page in OF_OTHERS:
            allowed = {OK, NOT_UNDERSTOOD, NOT_FOUND, NOT_WELL}
        if page.startswith(("/ui/", "/api")) and not HAS_DASHBOARD:
            is_told = status == NOT_WELL and MISSING.encode() in body
            require(is_told, "page", f"{host}{page} answers {status}: {body[:500]!r}")
            return
        require(status in allowed, "page", f"{host}{page} answers {status}: {body[:500]!r}")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if len(body) < int(lengths[0].split(b":")[1]):
            return
        if page == "/metrics":
            samples = [line for line in body.decode().splitlines() if line and not line.startswith("#")]
            readable = bool(samples) and all(_is_sample(line) for line in samples)
        elif page in DASHBOARD or page in OF_OTHERS:
            readable = body.startswith(b"<!doctype html>") and (
                body.endswith(b"</html>") or not HAS_DASHBOARD
            )
        else:
            readable = json.loads(body) is not None
        require(readable, "page", f"{host}{page} cannot be read: {body[:500]!r}")
        if page == "/healthz":
            require(
                json.loads(body)["healthy"] == (status == OK),
                "page",
                f"{host}{page} answers {status}: {body!r}",
            )

    def check(self) -> None:
        """See `Workload`: all was judged when it came."""


def _is_sample(line: str) -> bool:
    """A name, perhaps with labels, and a number."""
    name, _, value = line.rpartition(" ")
    try:
        float(value)
    except ValueError:
        return False
    return bool(name) and (name[0].isalpha() or name[0] == "_")


class _Page(asyncio.Protocol):
    """Collects an answer until the node hangs up."""

    def __init__(self) -> None:
        self.received = b""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        if not self.over.done():
            self.over.set_result(None)


async def get_page(host: str, page: str, header: str = "") -> bytes:
    """The whole answer; empty where the node went away. Raises OSError where it does not listen.

    `header`: more of the request's, with its line ends.
    """
    request = f"GET {page} HTTP/1.1\r\nHost: {host}\r\n{header}Connection: close\r\n\r\n"
    return await send(host, request.encode())


async def page_or_nothing(host: str, page: str, header: str = "") -> bytes:
    """See `get_page`; empty too where no answer came, or not in time."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await get_page(host, page, header)
    except (OSError, TimeoutError):
        return b""


async def send(host: str, request: bytes) -> bytes:
    """The whole answer to a request; see `get_page`."""
    transport, protocol = await asyncio.get_running_loop().create_connection(_Page, host, HTTP_PORT)
    transport.write(request)
    try:
        await protocol.over
    finally:
        transport.abort()
    return protocol.received
