"""Programs that use the API of HTTP: what they are told is of the types that the document names, and whole.

Lists are read piece by piece. Topics are planned (`dry_run`) and made.
"""

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

import antiphon.http.api.app
import antiphon.http.api.document  # noqa: F401 - nodes load both when first asked, and a simulated one reads no real file
from antiphon.client.aio import AsyncClient
from antiphon.http.api.answers import Page, Problem, TopicInfo
from antiphon.http.api.routes import ROUTES, Route
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.http import HAS_DASHBOARD, OK, send
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import Workload, insist
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

PATIENCE_S: Final = 12.0  # longer than a node works on an answer
PAUSE_S: Final = 0.4
MADE_MAX: Final = 4
PIECE: Final = 3
SEE_OTHER: Final = 303
BUSY: Final = (404, 409, 416, 429, 503)  # what is not there yet, or not now
READS: Final = tuple(route for route in ROUTES if route.method == "GET")


@workload("api_clients", 33, Drawn(one_of(0, 0, 0, 0, 1)), logs_in=False)
class ApiWorkload(Workload):
    """Read everything that the API shows, list topics in pieces, plan topics and make some, also by the dashboard's forms.

    Checked: each answer is of the type that the OpenAPI document names, or a problem that says what to do; the pieces of a
    list have each topic once; a plan makes nothing, and what was made is there.
    """

    may_be_killed = False

    def __init__(self, cluster: "SimulatedCluster", name: str = "api") -> None:
        super().__init__(cluster, name)
        self.outcomes = {"api-reads": 0, "api-lists": 0, "api-plans": 0, "api-made": 0, "api-not-answered": 0}
        self.outcomes |= {"forms-planned": 0, "forms-carried-out": 0}
        self._made: list[str] = []
        self._plans = (self._plan, self._plan_by_form if HAS_DASHBOARD else self._plan)
        self._makes = (self._make, self._make_by_form if HAS_DASHBOARD else self._make)
        self._tried = 0

    async def set_up(self, db: AsyncClient) -> None:
        """See `Workload`: a few topics, so that lists have several pieces."""
        for number in range(2 * PIECE):
            await insist(partial(db.create_topic, f"listed-{number}"))

    async def _work(self, process: "Process", _number: int) -> None:
        draw, number = process.random, 0
        while not self.stopped:
            host, kind = draw.choice(self.cluster.machines).host, draw.random()
            number += 1
            try:
                if kind < 0.6:
                    await self._read(host, draw.choice(READS))
                elif kind < 0.8:
                    await self._list(host)
                elif kind < 0.95 or self._tried >= MADE_MAX:
                    plan = draw.choice(self._plans)
                    await plan(host, f"planned-{process.name}-{number}")
                else:
                    self._tried += 1
                    make = draw.choice(self._makes)
                    await make(host, f"made-{process.name}-{number}")
            except (OSError, TimeoutError):
                self.outcomes["api-not-answered"] += 1
            await asyncio.sleep(draw.uniform(0.0, PAUSE_S))

    # -- what is asked ---------------------------------------------------------------------------------------------

    async def _ask(self, host: str, path: str, answer: Any, body: Any = None) -> Any:
        """The answer, judged; None: there was none, or it says that this is not to be had now."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        reply = await asyncio.wait_for(send(host, head.encode() + b"\r\n" + content), PATIENCE_S)
        first, found, told = reply.partition(b"\r\n\r\n")
        length = next(
            (line for line in first.lower().split(b"\r\n") if line.startswith(b"content-length:")), b""
        )
        if not found or len(told) < int(length.partition(b":")[2] or 0):
            return None  # the node went down in the middle of its answer
        status = int(first.split(b" ", 2)[1])
        try:
            decoded = msgspec.json.decode(told, type=answer if status == OK else Problem)
        except msgspec.DecodeError as error:
            require(False, "api", f"{host}{path} answers {status}: {error}: {told[:300]!r}")
        # A topic needs as many nodes as it has replicas, and some are down now.
        is_short = isinstance(decoded, Problem) and "alive" in decoded.facts
        is_fine = status == OK or status in BUSY or is_short
        require(is_fine, "api", f"{host}{path} answers {status}: {told[:300]!r}")
        self.cluster.tell("api", path, status)
        return decoded if status == OK else None

    async def _read(self, host: str, route: Route) -> None:
        values = {"topic": "listed-0", "table": "default", "node": "0", "group": "nobody"}
        path = route.path
        for name in route.in_path:
            path = path.replace("{" + name + "}", quote(values[name]))
        if await self._ask(host, path, route.answers) is not None:
            self.outcomes["api-reads"] += 1

    async def _list(self, host: str) -> None:
        """Names begin alike, and what is made meanwhile has other names: the list stays as it is."""
        seen: list[str] = []
        start: int | None = 0
        while start is not None:
            path = f"/api/topics?q=listed-&start={start}&limit={PIECE}"
            piece: Page[TopicInfo] | None = await self._ask(host, path, Page[TopicInfo])
            if piece is None or piece.total < 2 * PIECE:
                return  # a node that was just started does not know all yet
            seen += [one.name for one in piece.items]
            start = piece.next
        self.outcomes["api-lists"] += 1
        wanted = [f"listed-{number}" for number in range(2 * PIECE)]
        require(seen == wanted, "api", f"{host} lists {seen} in pieces, and there are {wanted}")

    async def _plan(self, host: str, name: str) -> None:
        route = next(one for one in ROUTES if one.name == "create_topic")
        said = await self._ask(host, "/api/topics?dry_run=true", route.answers, {"name": name, "shards": 2})
        if said is not None:
            self.outcomes["api-plans"] += 1
            require(said.plan is not None and said.plan.changed == 2, "api", f"{host} plans {said}")

    async def _make(self, host: str, name: str) -> None:
        route = next(one for one in ROUTES if one.name == "create_topic")
        if await self._ask(host, "/api/topics", route.answers, {"name": name}) is not None:
            self.outcomes["api-made"] += 1
            self._made.append(name)

    async def _fill_in(self, host: str, step: str, name: str) -> tuple[int, bytes] | None:
        """What a node says to the dashboard's form of a topic; None: nothing, or that this is not to be had now."""
        content = urlencode({"name": name, "shards": 2, "step": step}).encode()
        head = (
            f"POST /ui/actions/create_topic HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nConnection: close\r\n"
            f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        reply = await asyncio.wait_for(send(host, head.encode() + content), PATIENCE_S)
        first, found, told = reply.partition(b"\r\n\r\n")
        if not found:
            return None
        status = int(first.split(b" ", 2)[1])
        self.cluster.tell("form", f"{step} {name}", status)
        # A topic needs as many nodes as it has replicas, and some are down now.
        is_fine = status in {OK, SEE_OTHER, *BUSY} or b"alive" in told
        require(is_fine, "api", f"{host} answers {status} to a form: {told[:300]!r}")
        return (
            (status, told) if status in {OK, SEE_OTHER} and (told.endswith(b"</html>") or not told) else None
        )

    async def _plan_by_form(self, host: str, name: str) -> None:
        said = await self._fill_in(host, "plan", name)
        if said is not None:
            self.outcomes["forms-planned"] += 1
            shown = said[1].count(b"<td>made</td>")
            require((said[0], shown) == (OK, 2), "api", f"{host} shows {shown} shards for a plan of two")

    async def _make_by_form(self, host: str, name: str) -> None:
        said = await self._fill_in(host, "carry", name)
        if said is not None:
            require(said[0] == SEE_OTHER, "api", f"{host} answers {said[0]} to who has a topic made")
            self.outcomes["forms-carried-out"] += 1
            self._made.append(name)

    # -- judges ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        for machine in self.cluster.machines:
            node = machine.node
            if node is None:
                continue
            known = {topic.name for topic in node.gateway.metadata.topics}
            planned = sorted(name for name in known if name.startswith("planned-"))
            require(not planned, "api", f"{machine.host} knows topics that were planned only: {planned}")
            lost = [name for name in self._made if name not in known]
            require(not lost, "api", f"{machine.host} does not know topics that were made: {lost}")
