"""Logins by every means that there is, at every listener, while passwords, keys and entries come and go.

Tokens are of an issuer of the simulation (`tokens.py`), which replaces the keys of one node after the other. Connections are
such as TLS protects, with a certificate or without one, or plain ones (`Shield`). What a node could know by when it answered
is judged by what `__cluster` said in that time, by the node's own clock, and by the keys that it was given.
"""

import asyncio
import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.errors import InvalidRequestError
from antiphon.model.access import Acl, Credential, Operation, Permission, Resource
from antiphon.model.requests import AlterAcls, AlterUser
from antiphon.oxia import messages as om
from antiphon.security.authenticator import FAILED_DELAY_S, PLAIN
from antiphon.security.passwords import SALT_BYTES, SHA_256, credential
from antiphon.security.tokens import HAS_TOKENS
from antiphon.simulation.cluster.accounts import ITERATIONS
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.oxia_client import CallError, NoEndError, OxiaClient
from antiphon.simulation.cluster.tokens import KEYS, STRANGE_KEY, Token, make_token
from antiphon.simulation.cluster.workloads.access_history import Moment, allowed
from antiphon.simulation.cluster.workloads.changed_quotas import ChangedQuotas
from antiphon.simulation.cluster.workloads.lines import (
    LINES,
    TABLE,
    TOPIC,
    HttpLine,
    KafkaLine,
    Line,
    OxiaLine,
    Place,
    Shown,
    Told,
    oxia_client,
)
from antiphon.simulation.cluster.workloads.meters import FASTER, MeteredWorkload
from antiphon.simulation.cluster.workloads.new_connections import NewConnections
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import (
    PATIENCE_S,
    administer_all,
    insist,
    make_table,
    shards_of,
)
from antiphon.simulation.runtime.process import Shield
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from random import Random

    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

BY_PASSWORD, BY_TOKEN = "by-password", "by-token"
BY_CERTIFICATE: Final = "CN=by certificate,O=Example\\, Inc."
SUBJECT: Final = ((("organizationName", "Example, Inc."),), (("commonName", "by certificate"),))
PRINCIPALS: Final = (BY_PASSWORD, BY_TOKEN, BY_CERTIFICATE)
ASKS_MAX: Final = 8  # on one connection
MANY_ASKS: Final = 60
HANGS_UP_S: Final = 2.0  # of a node's time, from when it has known that a login is none any more
KEYS_SEEN_S: Final = 1.0 * FASTER  # after they were replaced, at the latest
CHANGE_PAUSE_S: Final = 0.25
KEYS_PAUSE_S: Final = 0.7
PAUSE_S: Final = 0.3
LASTS_S: Final = (-100.0, -5.0, -1.0, 0.5, 2.0, 5.0, 600.0, 600.0)  # of a token, from when it is shown
WRONG: Final[tuple[dict[str, Any], ...]] = ({"iss": "https://others"}, {"aud": "others"}, {"nbf": 4e9})


class Case(NamedTuple):
    """Somebody, and what he shows. `principal`: who that is if it is good; empty: nobody.

    `number`: of the password; -1: it is none.
    """

    shown: Shown
    principal: str
    number: int = -1
    token: Token | None = None


class Asked(NamedTuple):
    """When a node was asked: which of its processes runs, what it knew, the world's time, and the node's."""

    node: int
    starts: int
    since: Moment | None
    at_s: float
    wall_s: float


@workload("identities", 45, Drawn(one_of(0, 1)))
class IdentitiesWorkload(MeteredWorkload):
    """Users log in by passwords (SCRAM, PLAIN, Basic), by bearer tokens and by certificates, or show nothing, at all four
    listeners, by connections that are protected as by TLS and by plain ones, and ask to read. Passwords, entries of lists
    and keys of tokens come and go; tokens expire; some share a connection of Oxia's. One user writes more than his quota at
    each listener, while it is changed and taken away; two addresses make connections in bursts, at rates that change. Half
    of the worlds with `principals` have it.

    Checked: a login is taken only if what was shown was good at some moment until the answer, and refused only if it was
    not; never is a secret taken by a plain connection, or somebody who shows nothing let in; who is refused waits a second.
    Who was let in is answered no more when his node has known for 2 s that his password is none, or his token has expired.
    What he may do is what `__cluster` says of the principal. After a change of quotas nobody gets more than the new one
    lets, and in the end all who wait are let go on within 2.5 s of when their node knows of one. No address gets more new
    connections than its rate; within it no page is refused.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "identities") -> None:
        super().__init__(cluster, name)
        self._keys = [
            [(0.0, machine.token_keys.numbers)] for machine in cluster.machines
        ]  # by node, since when
        self._passwords = 1  # that there have been, the newest included
        self._quotas = ChangedQuotas(self)
        self._connections = NewConnections(self)
        self.outcomes = dict.fromkeys(
            (
                *(f"{line.__name__}-{told.value}" for line in LINES for told in Told),
                *("tokens-taken", "tokens-refused", "certificates-taken", "passwords-taken", "logins-ended"),
                *("shared-writes", "identity-changes", *self._quotas.OUTCOMES, *self._connections.OUTCOMES),
            ),
            0,
        )

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        await insist(lambda: db.create_topic(TOPIC))
        (topic,) = await shards_of(db, TOPIC)
        (table,) = await make_table(self.cluster, db, TABLE, shards=1)
        self.places = [Place(machine.host, topic, table.shard_id) for machine in self.cluster.machines]
        requests = (
            AlterUser(BY_PASSWORD, (_key(0),)),
            AlterAcls((*_entries(BY_PASSWORD), *_entries(BY_CERTIFICATE), _may_write())),
            *self._quotas.set_up(),
            *self._connections.set_up(),
        )
        await administer_all(db, requests)

    def begin(self) -> None:
        """See `Workload`."""
        super().begin()
        self.start("operator", self._operate)
        self.start("issuer", self._replace_keys)
        for who in (BY_PASSWORD, BY_TOKEN, ""):
            self.start(f"shielded {who}", lambda process, who=who: self._stay(process, who), Shield())  # type: ignore[misc]
            self.start(f"plain {who}", lambda process, who=who: self._stay(process, who))  # type: ignore[misc]
        self.start("certified", lambda process: self._stay(process, BY_CERTIFICATE), Shield(SUBJECT))
        self.start("shared", self._share, Shield())
        self._quotas.begin()
        self._connections.begin()

    # -- who changes it -----------------------------------------------------------------------------------------------

    async def _operate(self, process: "Process") -> None:
        draw, db = process.random, await self.connected()
        while not self.stopped:
            await asyncio.sleep(draw.expovariate(1 / CHANGE_PAUSE_S))
            request = self._change(draw)
            with contextlib.suppress(InvalidRequestError):  # by now there is no such user
                await administer_all(db, (request,))
            self.outcomes["identity-changes"] += 1
        await db.close()
        self.changes_are_over.set()

    def _change(self, draw: "Random") -> Any:
        choice, known = draw.random(), self.history.now()
        if choice < 0.35 or _may_write() not in known.acls:
            entries = _entries(draw.choice(PRINCIPALS))
            has_it = entries[0] in known.acls
            return AlterAcls(remove=entries) if has_it else AlterAcls((*entries, _may_write()))
        if choice < 0.6:
            number, self._passwords = self._passwords, self._passwords + 1
            return AlterUser(BY_PASSWORD, (_key(number),))
        if choice < 0.7:
            return AlterUser(BY_PASSWORD, remove=True)
        return (self._quotas if draw.random() < 0.5 else self._connections).change(draw)

    async def _replace_keys(self, process: "Process") -> None:
        """The issuer: each node's set of keys is another one now and then."""
        draw = process.random
        while not self.stopped:
            await asyncio.sleep(draw.expovariate(1 / KEYS_PAUSE_S))
            node = self.any_node(draw)
            numbers = tuple(sorted(draw.sample(range(KEYS), draw.randint(1, KEYS))))
            self.cluster.machines[node].token_keys.put(numbers)
            self._keys[node].append((self.now, numbers))

    # -- who asks -----------------------------------------------------------------------------------------------------

    async def _stay(self, process: "Process", who: str) -> None:
        draw = process.random
        while not self.stopped:
            node, kind = self.any_node(draw), draw.choice(LINES)
            case = self._case(draw, who, node)
            line = kind(process, self.places[node], case.shown)
            stay = Stay(self, case, node)
            asks = MANY_ASKS if draw.random() < 0.3 else draw.randint(1, ASKS_MAX)
            for number in range(asks):
                is_first = not (number and line.logs_in_once)
                if not await self._ask(line, stay, process.shield, is_first=is_first) or self.stopped:
                    break
                await asyncio.sleep(draw.uniform(0.0, PAUSE_S))
            await line.close()
            await asyncio.sleep(draw.uniform(0.0, PAUSE_S))

    def _case(self, draw: "Random", who: str, node: int) -> Case:
        if who == BY_CERTIFICATE:
            other = draw.choice((BY_PASSWORD, BY_TOKEN)) if draw.random() < 0.3 else ""
            return self._case(draw, other, node) if other else Case(Shown(), BY_CERTIFICATE)
        if who == BY_TOKEN and HAS_TOKENS:
            token = self._token(draw, node)
            return Case(Shown(token=token.text), BY_TOKEN, token=token)
        if who == BY_PASSWORD:
            newest = self._passwords - 1
            number = newest if draw.random() < 0.6 else draw.randint(max(0, newest - 3), newest)
            mechanism = draw.choice((SHA_256, PLAIN))
            return Case(Shown(who, _password(number), mechanism=mechanism), who, number)
        return Case(Shown(), "")

    def _token(self, draw: "Random", node: int) -> Token:
        machine = self.cluster.machines[node]
        now_s = self._wall_s(node)
        key = draw.choice(machine.token_keys.numbers if draw.random() < 0.6 else range(KEYS))
        key = draw.choice((STRANGE_KEY, -1)) if draw.random() < 0.1 else key
        wrong = draw.choice(WRONG) if draw.random() < 0.2 else {}
        return make_token(key, BY_TOKEN, now_s - 200.0, now_s + draw.choice(LASTS_S), **wrong)

    def _wall_s(self, node: int) -> float:
        """What the clock of a node's process says; 0.0: there is none."""
        process = self.cluster.machines[node].process
        return 0.0 if process is None else process.wall_ns() / 1e9

    def _asked(self, node: int) -> Asked:
        since = self.history.moment(node)
        return Asked(node, self.clocks.starts(node), since, self.now, self._wall_s(node))

    async def _ask(self, line: Line, stay: "Stay", shield: Shield | None, *, is_first: bool) -> bool:
        """Ask once, and judge the answer; False: that was it."""
        case, known_for_s, asked = stay.case, stay.known_for_s(), self._asked(stay.node)
        told = await line.ask()
        self.outcomes[f"{type(line).__name__}-{told.value}"] += 1
        if told is Told.NOTHING:
            self.outcomes["logins-ended"] += not is_first
            return False
        if is_first:
            self._judge_login(line, stay, asked, shield, taken=told is not Told.REFUSED)
        else:
            require(
                known_for_s < HANGS_UP_S,
                "login-over",
                f"node {stay.node} answers {_words(line, case)}, and knows for {known_for_s:.1f} s that this is none",
            )
        if told is Told.REFUSED:
            return False
        self._judge_right(line, case, asked, passed=told is Told.LET)
        return True

    def _judge_login(
        self, line: Line, stay: "Stay", asked: Asked, shield: Shield | None, *, taken: bool
    ) -> None:
        case = stay.case
        # Oxia's listener looks at a token once, as the others do, where the next call on the connection has the same one.
        since_s = stay.since_s if isinstance(line, OxiaLine) and stay.since_s >= 0.0 else asked.at_s
        is_plain = isinstance(line, KafkaLine) and case.shown.mechanism == PLAIN
        reveals = is_plain or case.token is not None or isinstance(line, HttpLine | OxiaLine)
        is_served = shield is not None or not reveals
        if not case.shown.authorization:
            is_right = taken == (shield is not None and bool(shield.subject))
        elif not is_served:
            is_right = not taken
        elif case.token is not None:
            is_right = self._could_be_token(case.token, asked, since_s, taken=taken)
        else:
            mine, since = (BY_PASSWORD, _key(case.number).stored_key), asked.since or Moment(self.begun_at)
            is_right = self.history.could(since, lambda known: (mine in known.keys) == taken)
        how = "plainly" if shield is None else "with a certificate" if shield.subject else "protected"
        require(
            is_right,
            "login",
            f"node {asked.node} {'takes' if taken else 'refuses'} {_words(line, case)}, {how}; it was asked at version "
            f"{asked.since}, at {asked.wall_s:.3f} s, and has keys {self._keys_since(asked.node, since_s)}",
        )
        if taken:
            stay.since_s = since_s
            kind = "tokens" if case.token else "passwords" if case.shown.user else "certificates"
            self.outcomes[f"{kind}-taken"] += 1
            if isinstance(line, KafkaLine):
                self._judge_lifetime(line, case, asked)
        elif case.shown.authorization and (is_served or isinstance(line, HttpLine | OxiaLine)):
            self.outcomes["tokens-refused"] += case.token is not None
            took_s = self.now - asked.at_s
            require(
                took_s >= FAILED_DELAY_S / FASTER,
                "login-delayed",
                f"node {asked.node} refuses {_words(line, case)} after {took_s:.3f} s",
            )

    def _judge_lifetime(self, line: KafkaLine, case: Case, asked: Asked) -> None:
        """A client is told how long its token is good, so that it logs in again by then."""
        most_ms = 0 if case.token is None else (case.token.until_s - asked.wall_s) * 1000 + 2
        require(
            bool(line.lifetime_ms) == (case.token is not None)
            and (line.lifetime_ms <= most_ms or asked.starts != self.clocks.starts(asked.node)),
            "login-lifetime",
            f"node {asked.node} says that {_words(line, case)} is good for {line.lifetime_ms} ms, it is for {most_ms:.0f}",
        )

    def _could_be_token(self, token: Token, asked: Asked, since_s: float, *, taken: bool) -> bool:
        """Was it good, or not, at some moment since it was shown, by the node's clock and keys?"""
        if asked.starts != self.clocks.starts(asked.node):
            return not taken or token.good  # another process has another clock
        now_s, keys = self._wall_s(asked.node), self._keys_since(asked.node, since_s)
        if taken:
            return token.good and token.until_s >= asked.wall_s and any(token.key in one for one in keys)
        return not token.good or token.until_s <= now_s or any(token.key not in one for one in keys)

    def _keys_since(self, node: int, since_s: float) -> list[tuple[int, ...]]:
        """The sets of keys that a node may have gone by since a time of the world."""
        found = self._keys[node]
        begins_s = since_s - KEYS_SEEN_S
        return [
            numbers
            for (_, numbers), (until_s, _) in zip(found, [*found[1:], (self.now + 1.0, ())], strict=True)
            if until_s >= begins_s
        ]

    def _judge_right(self, line: Line, case: Case, asked: Asked, *, passed: bool) -> None:
        if asked.since is None or asked.since.version < self.begun_at:
            return
        is_table = isinstance(line, OxiaLine)
        operation = Operation.DESCRIBE if isinstance(line, HttpLine) else Operation.READ
        name, resource = (TABLE, Resource.TABLE) if is_table else (TOPIC, Resource.TOPIC)
        require(
            self.history.could(
                asked.since, lambda known: allowed(known, case.principal, operation, name, resource) == passed
            ),
            "access",
            f"node {asked.node} {'lets' if passed else 'does not let'} {case.principal} {operation} {name} "
            f"({_words(line, case)}), from version {asked.since.version} on",
        )

    # -- one connection, several users --------------------------------------------------------------------------------

    async def _share(self, process: "Process") -> None:
        """A stream of writes by who has a password, on a connection by which others ask as well."""
        draw = process.random
        while not self.stopped:
            node = self.any_node(draw)
            number = self._passwords - 1
            stay = Stay(self, Case(Shown(BY_PASSWORD, _password(number)), BY_PASSWORD, number), node)
            client = oxia_client(process, self.host(node))
            with contextlib.suppress(CallError, NoEndError):
                await self._write_on(client, stay, process)
            client.hang_up()
            await asyncio.sleep(draw.uniform(0.0, PAUSE_S))

    async def _write_on(self, client: OxiaClient, stay: "Stay", process: "Process") -> None:
        """Raises CallError, NoEndError."""
        draw = process.random
        shard_id = self.places[stay.node].table_shard
        client.metadata = {"authorization": stay.case.shown.authorization}
        connection, stream_id, stream = await client.open_call("WriteStream", shard_id=str(shard_id))
        request = om.WriteRequest(shard=shard_id, puts=[om.PutRequest(key=b"k", value=b"v")])
        for _ in range(MANY_ASKS):
            known_for_s = stay.known_for_s()
            connection.say(stream_id, request, last=False)
            if self.stopped or await stream.next(PATIENCE_S) is None:
                return
            self.outcomes["shared-writes"] += 1
            require(
                known_for_s < HANGS_UP_S,
                "login-over",
                f"node {stay.node} answers a stream of writes of {stay.case.principal}, and knows for {known_for_s:.1f} s "
                f"that password {stay.case.number} is none",
            )
            if draw.random() < 0.3:
                case = self._case(draw, draw.choice((BY_TOKEN, "")), stay.node)
                line = OxiaLine(process, self.places[stay.node], case.shown, client)
                await self._ask(line, Stay(self, case, stay.node), process.shield, is_first=True)
            await asyncio.sleep(draw.uniform(0.0, PAUSE_S))


class Stay:
    """Somebody who has logged in at a node."""

    def __init__(self, workload: IdentitiesWorkload, case: Case, node: int) -> None:
        self.case = case
        self.node = node
        self.since_s = -1.0  # by the world's time, when what it shows was first taken
        self._workload = workload
        self._starts = workload.clocks.starts(node)
        self._over_s = -1.0  # how long the node had run when its clock was seen to be past the token's end

    def known_for_s(self) -> float:
        """For how long, of its own time and at least, the node has known that the login is none any more."""
        clocks, case = self._workload.clocks, self.case
        if case.token is not None:
            return self._expired_for_s(case.token)
        gone_at = None
        if case.number >= 0:
            gone_at = self._workload.history.gone_at(BY_PASSWORD, _key(case.number).stored_key)
        return 0.0 if gone_at is None else clocks.knows_for_s(self.node, gone_at)

    def _expired_for_s(self, token: Token) -> float:
        workload = self._workload
        if self._starts != workload.clocks.starts(self.node):
            return 0.0
        ran_s = workload.clocks.ran_s(self.node)
        if self._over_s < 0.0:
            process = workload.cluster.machines[self.node].process
            if process is None or process.wall_ns() / 1e9 < token.until_s:
                return 0.0
            self._over_s = ran_s
        return ran_s - self._over_s


def _words(line: Line, case: Case) -> str:
    """Who asks, and how."""
    shown, where = case.shown, type(line).__name__
    if case.token is not None:
        token = case.token
        good = "good" if token.good else "wrong"
        return f"a {good} token until {token.until_s:.3f} s by key {token.key} at {where}"
    return f"password {case.number} ({shown.mechanism}) at {where}" if shown.user else f"nothing at {where}"


def _entries(principal: str) -> tuple[Acl, ...]:
    """What lets somebody read."""
    who = f"User:{principal}"
    return tuple(
        Acl(who, resource, name, Operation.READ, permission=Permission.ALLOW)
        for resource, name in ((Resource.TOPIC, TOPIC), (Resource.TABLE, TABLE))
    )


def _may_write() -> Acl:
    """What lets a stream of writes go on."""
    return Acl(f"User:{BY_PASSWORD}", Resource.TABLE, TABLE, Operation.WRITE)


def _password(number: int) -> str:
    return f"password {number} of {BY_PASSWORD}"


@cache
def _key(number: int) -> Credential:
    """What the cluster keeps of it; the same each time."""
    salt = f"{number}".encode().ljust(SALT_BYTES, b"-")
    return credential(SHA_256, _password(number), salt, ITERATIONS)
