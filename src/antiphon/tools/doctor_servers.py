"""What the doctor sees of a cluster from outside: who listens at the addresses, what the nodes say, how they differ.

An address that is no native port is asked in the ways of the other listeners, so that a Kafka or HTTP port that was given
for it is called by its name.
"""

import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.client.account import default_account
from antiphon.client.addresses import parse_address
from antiphon.client.tls import context_for
from antiphon.errors import AccessDeniedError, AntiphonError, InvalidRequestError, UnauthenticatedError
from antiphon.model.requests import PROTOCOL_VERSION, Hello
from antiphon.tools.doctor_finding import Finding, finding
from antiphon.wire.frames import encode_message

if TYPE_CHECKING:
    from antiphon.tools.node_clocks import Difference

ANSWER_S: Final = 1.0
CONNECT_S: Final = 2.0
NATIVE: Final = "native"
_TLS_ALERT: Final = b"\x15\x03"
_CORRELATION: Final = 7_777
_CLIENT: Final = b"antiphon-doctor"
_API_VERSIONS: Final = struct.pack(">hhih", 18, 0, _CORRELATION, len(_CLIENT)) + _CLIENT
_SETTINGS: Final = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # of HTTP/2, with nothing in it

_QUESTIONS: Final[Sequence[tuple[str, bytes, Callable[[bytes], bool]]]] = (
    (
        NATIVE,
        b"".join(encode_message(1, Hello(PROTOCOL_VERSION, "antiphon-doctor"))),
        lambda answer: b"HelloReply" in answer or b"Failure" in answer,
    ),
    ("HTTP", b"GET /livez HTTP/1.0\r\n\r\n", lambda answer: answer.startswith(b"HTTP/")),
    (
        "Kafka",
        struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS,
        lambda answer: answer[4:8] == struct.pack(">i", _CORRELATION),
    ),
    (
        "Oxia",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS,
        lambda answer: len(answer) >= len(_SETTINGS) and answer[3:4] == b"\x04" and answer[:1] == b"\x00",
    ),
)


class Heard(NamedTuple):
    """Who listens somewhere: `protocol` is empty where no question was answered. `tls`: only with TLS."""

    protocol: str
    tls: bool = False


def who_listens(host: str, port: int) -> Heard | None:
    """Ask in every way; None: nobody listens."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError:
        return None
    for tls in (False, True):
        for protocol, question, fits in _QUESTIONS:
            answer = _answer(host, port, question, tls=tls)
            if answer is None or (not tls and answer.startswith(_TLS_ALERT)):
                break
            if fits(answer):
                return Heard(protocol, tls)
    return Heard("", _answer(host, port, b"", tls=True) is not None)


def _answer(host: str, port: int, question: bytes, *, tls: bool) -> bytes | None:
    """What comes back, empty if nothing; None: TLS is spoken in no way."""
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S) as plain:
            if not tls:
                return _asked(plain, question)
            context = ssl.create_default_context()
            context.check_hostname = False  # who it is does not matter here: nothing is told to it
            context.verify_mode = ssl.CERT_NONE
            with context.wrap_socket(plain, server_hostname=host) as wrapped:
                return _asked(wrapped, question)
    except OSError:
        return None if tls else b""


def _asked(connected: socket.socket, question: bytes) -> bytes:
    if not question:
        return b""
    try:
        connected.sendall(question)
        return connected.recv(4096)
    except OSError:
        return b""


# -- addresses ----------------------------------------------------------------------------------------------------


def examine_servers(servers: str) -> list[Finding]:
    """Addresses, logins, nodes, clocks, shards."""
    looked = [_address(text.strip()) for text in servers.split(",")]
    findings = [found for found, _ in looked if found is not None]
    if not any(good for _, good in looked):
        do = "antiphon up, or name other --servers"
        return [*findings, finding("wrong", "the cluster cannot be reached", do)]
    if any(found is not None and found["level"] == "wrong" for found, good in looked if good):
        return findings  # asking on that way would say the same again, in other words
    for found, _ in looked:
        if found is not None:
            found["level"] = "note"  # another address leads to the cluster
    try:
        default_account()
    except InvalidRequestError as error:
        return [
            *findings,
            finding("wrong", error.message, "put the file there, or correct ANTIPHON_PASSWORD_FILE"),
        ]
    return [*findings, *_cluster(servers)]


def why_unreachable(servers: str) -> str:
    """What is wrong with addresses that gave no answer, in one line; empty: nothing that can be seen from here."""
    for text in servers.split(","):
        found, _ = _address(text.strip())
        if found is not None and found["level"] == "wrong":
            return f"{found['what']}: {found['do']}"
    return ""


def _address(text: str) -> tuple[Finding | None, bool]:
    """What is wrong with an address, and whether a native port of a node is there."""
    try:
        host, port = parse_address(text)
    except InvalidRequestError as error:
        return finding("wrong", error.message, "correct --servers, or ANTIPHON_SERVERS"), False
    heard = who_listens(host, port)
    if heard is None:
        do = "is the node running, and is this its native port?"
        return finding("note", f"nobody listens at {text}", do), False
    if heard.protocol not in {NATIVE, ""}:
        what = f"{text} is a port for {heard.protocol} clients, and commands and Antiphon's own clients use the native one"
        do = "give the native port: 7400 of the first node of `antiphon up`; `antiphon node list --dir DIR` shows all"
        return finding("wrong", what, do), False
    try:
        wants_tls = context_for(None, host, port) is not None
    except InvalidRequestError as error:
        return finding("wrong", error.message, "correct ANTIPHON_TLS and ANTIPHON_TLS_CERTIFICATE"), True
    if heard.tls and not wants_tls:
        what = f"{text} takes TLS only, and nothing says whom to trust"
        do = "ANTIPHON_TLS=FILE with the authority (PEM), or --dir of a cluster of `antiphon up --secure`"
        return finding("wrong", what, do), True
    if not heard.protocol and not heard.tls:
        return finding(
            "wrong", f"what listens at {text} is no node of Antiphon", "name other --servers"
        ), False
    if wants_tls and not heard.tls:
        return finding(
            "wrong", f"{text} speaks no TLS, and ANTIPHON_TLS asks for it", "unset ANTIPHON_TLS"
        ), True
    return None, True


# -- what nodes say -----------------------------------------------------------------------------------------------


def _cluster(servers: str) -> list[Finding]:
    from antiphon.tools.cluster_health import collect, line_of

    try:
        found = collect(servers)
        clocks = _clocks(servers)
    except UnauthenticatedError as error:
        return [finding("wrong", f"the login is not taken: {error.message}", _login_hint())]
    except AccessDeniedError as error:
        do = "log in as somebody who may, or `antiphon acl add` what is missing"
        return [finding("wrong", f"this login may not ask: {error.message}", do)]
    except AntiphonError as error:
        do = "see node.log in the nodes' folders"
        return [finding("wrong", f"the cluster does not answer: {error.message}", do)]
    hint = (
        "start the missing nodes; shards without a majority stay Offline until then; if the disks of most of a shard's "
        "replicas are lost for good: `antiphon shard recover TOPIC SHARD`"
    )
    told = {line_of(one) for one in found["findings"]}
    findings = [finding("wrong", problem, hint) for problem in found["problems"] if problem not in told]
    findings += [_of_node(one) for one in found["findings"]]
    findings += [*clocks, *versions(found["nodes"])]
    if found["healthy"]:
        findings.append(finding("ok", f"the cluster is healthy: {found['shards']} shards, all led"))
    return findings


def _login_hint() -> str:
    """What to set, by what is set."""
    given = default_account()
    if given.is_empty:
        return "set ANTIPHON_USER and ANTIPHON_PASSWORD_FILE, or ANTIPHON_TOKEN; or name the --dir of a secure cluster"
    who = f"of {given.user} " if given.user else ""
    return f"look at the password or token {who}(ANTIPHON_PASSWORD_FILE, ANTIPHON_TOKEN); an administrator sets a new one"


def versions(nodes: Sequence[dict[str, Any]]) -> list[Finding]:
    """Nodes of several versions: an upgrade that stopped half way."""
    by_version: dict[str, list[str]] = {}
    for node in nodes:
        if node["version"] is not None:
            by_version.setdefault(node["version"], []).append(str(node["id"]))
    if not by_version:
        return []
    if len(by_version) == 1:
        return [finding("ok", f"all nodes run version {next(iter(by_version))}")]
    shown = "; ".join(f"{version}: node {', '.join(ids)}" for version, ids in sorted(by_version.items()))
    do = "finish the upgrade: `antiphon upgrade --check` says what is in its way, `antiphon node restart` goes on"
    return [finding("note", f"nodes run different versions: {shown}", do)]


def _clocks(servers: str) -> list[Finding]:
    """Nodes whose clocks are not that of this machine."""
    import antiphon
    from antiphon.tools.node_clocks import differences

    with antiphon.connect(servers) as db:
        return judge_clocks(differences(db.metadata().nodes))


def judge_clocks(found: "Sequence[Difference]") -> list[Finding]:
    """What these differences mean."""
    if not found:
        return []
    do = "have its machine synchronise its clock (chrony, systemd-timesyncd); if all nodes differ, it is this machine's"
    off = [finding("wrong", f"clocks: {one} of this machine", do) for one in found if one.is_off]
    most = max(abs(one.ahead_s) for one in found)
    return off or [
        finding("ok", f"the clocks of {len(found)} nodes are within {most:.2f} s of this machine's")
    ]


def _of_node(one: dict[str, Any]) -> Finding:
    """What a node found to be wrong, or has mended."""
    from antiphon.tools.cluster_health import ago, line_of

    what = line_of({**one, "do": ""})
    if one["mended_ms"]:
        return finding("note", f"{what}; mended {ago(one['mended_ms'])}")
    return finding("wrong", what, one["do"])
