"""Damages what a node reads beside its data: node.toml, certificates, keys, the first user, the log it writes.

A node with TLS, users and tokens, as a real server in this process. Each file is damaged before a start, or while the
node runs. A trial is good where the node starts and an administrator gets in by password over TLS as before; or it tells
in node.log, with the file's name; or it refuses to start in words that name the file and say what to do.
"""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final, Self

import structlog
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

import antiphon
from antiphon.errors import AntiphonError
from antiphon.node.config import LogFiles, Member, NodeConfig, Ports, load_config, save_config
from antiphon.node.logs import LOG_FILE, open_log
from antiphon.security.authority import issue, new_authority
from antiphon.security.settings import OAuth, Security, Tls
from antiphon.server.first_user import write_first_user
from antiphon.server.server import Server
from tests.node.damage_kinds import HARMS, OF_POSITIONS, PAGE_BYTES
from tests.node.damage_outcomes import RUNNING, Trial

USER, PASSWORD = "admin", "the administrator's password"
NOBODY: Final = 65534  # for whom a file is forbidden where the trials are run by the superuser
LOGIN_S: Final = 3.0
TELL_S: Final = 8.0
NODE, OTHER = "node-0", "node-1"  # of the other one files are taken
TLS_FILES: Final = (
    "node.pem",
    "node.key",
    "authority.pem",
    "peer.pem",
    "peer-tls.key",
    "peers-authority.pem",
)
FILES: Final = ("node.toml", "peer.key", *TLS_FILES, "keys.json", "first-user", LOG_FILE)
WHILE_RUNNING: Final = (*TLS_FILES, "keys.json", LOG_FILE)
TELLING: Final = {
    "tls_files_not_taken", "token_keys_not_read", "token_key_not_taken", "first_user_not_read", "first_user_not_made",
    "not_started",
}  # fmt: skip


class Place:
    """The folders of two nodes of different clusters: `new` before their first start, `used` after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        clients, peers = new_authority("clients"), new_authority("nodes")
        self.trusted = folder / "trusted.pem"
        self.trusted.write_bytes(clients.certificate)
        for name in (NODE, OTHER):
            home = folder / "new" / name
            home.mkdir(parents=True)
            for stem, key, authority in (("node", "node", clients), ("peer", "peer-tls", peers)):
                issued = issue(authority, name, ("127.0.0.1", "localhost"))
                (home / f"{stem}.pem").write_bytes(issued.certificate)
                (home / f"{key}.key").write_bytes(issued.key)
            (home / "authority.pem").write_bytes(clients.certificate)
            (home / "peers-authority.pem").write_bytes(peers.certificate)
            (home / "peer.key").write_text(os.urandom(32).hex())
            public = ec.generate_private_key(ec.SECP256R1()).public_key()
            plain = json.loads(ECAlgorithm.to_jwk(public))
            keys = {"keys": [{**plain, "kid": "k1", "alg": "ES256", "use": "sig"}]}
            (home / "keys.json").write_text(json.dumps(keys))
            write_first_user(home / "first-user", USER, PASSWORD)
            save_config(_config(home, name), home)
        (folder / "used").mkdir()
        for name in (NODE, OTHER):
            used = folder / "used" / name
            shutil.copytree(folder / "new" / name, used)
            asyncio.run(self._use(used))

    async def _use(self, home: Path) -> None:
        async with _Running(home, bootstrap=True) as node:
            assert await node.lets_in(self.trusted, 20.0), (
                "the node lets nobody in before anything is damaged"
            )
            await eventually((home / "first-user").exists, wanted=False)


def _config(home: Path, name: str) -> NodeConfig:
    security = Security(
        authentication=True,
        tls=Tls("node.pem", "node.key", "authority.pem", "requested"),
        peer_tls=Tls("peer.pem", "peer-tls.key", "peers-authority.pem"),
        peer_key="peer.key",
        first_user="first-user",
        super_users=[f"User:{USER}"],
        sasl_mechanisms=["SCRAM-SHA-256", "OAUTHBEARER"],
        oauth=OAuth("keys.json", issuer="https://issuer.example", audience="antiphon"),
    )
    return NodeConfig(
        cluster_id=f"cluster of {name}",
        node_id=0,
        nodes=[Member(0, "127.0.0.1:7400", "127.0.0.1:7500")],
        dir=home,
        ports=Ports(0, -1, -1, -1, 0),
        security=security,
    )


async def eventually(condition: Callable[[], bool], *, wanted: bool) -> None:
    """Wait until the condition is as wanted."""
    for _ in range(200):
        if condition() is wanted:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come true in time")


class _Running:
    """A server in this process."""

    def __init__(self, home: Path, *, bootstrap: bool) -> None:
        self._home = home
        self._bootstrap = bootstrap
        self._server: Server | None = None
        self.refusal = ""  # what a client that is not let in was told

    async def __aenter__(self) -> Self:
        config = load_config(self._home)
        config.bootstrap = self._bootstrap
        self._log = open_log(self._home, "info", config.node_id, LogFiles())
        server = Server(config, finishes_epochs=False)
        try:
            await server.start()
        except BaseException:
            with suppress(Exception):
                await server.stop()
            raise
        self._server = server
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            await self._server.stop()
        self._log.close()

    async def lets_in(self, trusted: Path, patience_s: float) -> bool:
        """Does an administrator get in, and is served?"""
        assert self._server is not None
        address = self._server.node.meta().native
        ends_s = asyncio.get_running_loop().time() + patience_s
        while True:
            try:
                await asyncio.to_thread(_log_in, address, trusted)
            except AntiphonError as error:
                self.refusal = f"{type(error).__name__}: {error}"
                if asyncio.get_running_loop().time() > ends_s:
                    return False
                await asyncio.sleep(0.1)
            else:
                return True

    async def shows_a_token(self, trusted: Path) -> None:
        """Somebody does, and it is none."""
        assert self._server is not None
        address = self._server.node.meta().native
        with suppress(AntiphonError):
            await asyncio.to_thread(
                antiphon.connect, address, tls=str(trusted), token="a.b.c", connect_timeout_s=LOGIN_S
            )

    def told(self) -> list[str]:
        """What node.log says that is about damage, and what the node has found."""
        assert self._server is not None
        text = b""
        with suppress(OSError):
            text = (self._home / LOG_FILE).read_bytes()
        lines = []
        for line in text.splitlines():
            with suppress(ValueError):
                lines.append(json.loads(line)["event"])
        found = [one.kind for one in self._server.node.status().findings if not one.mended_ms]
        return sorted({*(event for event in lines if event in TELLING), *found})


def _log_in(address: str, trusted: Path) -> None:
    with antiphon.connect(
        address, tls=str(trusted), user=USER, password=PASSWORD, timeout_s=LOGIN_S, connect_timeout_s=LOGIN_S
    ) as db:
        db.node_status(0)


def all_trials() -> Iterator[Trial]:
    """Every file in every way."""
    for before, files in (("stopped", FILES), (RUNNING, WHILE_RUNNING)):
        for name in files:
            for harm in (one for one in HARMS if one not in OF_POSITIONS):
                yield Trial(name, f"{NODE}/{name}", harm, before)


@contextmanager
def place() -> Iterator[Place]:
    """Make the folders; they are removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="antiphon-damage-"))
    try:
        yield Place(folder)
    finally:
        structlog.reset_defaults()
        shutil.rmtree(folder, ignore_errors=True)


def try_out(trial: Trial, where: Place) -> Trial:
    """Damage the file, start the node or let it go on, look."""
    home = where.folder / "trial"
    shutil.rmtree(home, ignore_errors=True)
    state = "new" if trial.kind == "first-user" else "used"
    shutil.copytree(where.folder / state / NODE, home)
    draw = Random(f"{trial.path} {trial.harm} {trial.before}")
    try:
        asyncio.run(_try(trial, where, home, where.folder / state / OTHER, draw))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this trial's outcome
        trial.wrong = f"{type(error).__name__}: {error}"
    trial.refused = trial.refused.replace(str(home), f"/{NODE}")
    return trial


async def _try(trial: Trial, where: Place, home: Path, other: Path, draw: Random) -> None:
    file, founds = home / trial.kind, trial.kind == "first-user"
    if trial.before != RUNNING:
        _harm(file, trial.harm, other / trial.kind, draw)
    with _as_others(home) if trial.harm == "forbid" and trial.before != RUNNING else _as_before():
        running = _Running(home, bootstrap=founds)
        try:
            await running.__aenter__()
        except (AntiphonError, OSError) as error:
            trial.refused, trial.served = str(error), True
            return
        try:
            if trial.before == RUNNING:
                assert await running.lets_in(where.trusted, 20.0)
                _harm(file, trial.harm, other / trial.kind, draw)
            with _as_others(home) if trial.harm == "forbid" and trial.before == RUNNING else _as_before():
                await _judge(trial, where, running)
        finally:
            await running.__aexit__()


async def _judge(trial: Trial, where: Place, running: _Running) -> None:
    if trial.kind == "keys.json":
        await running.shows_a_token(where.trusted)  # the keys are read when one comes
    trial.mended = trial.served = await running.lets_in(where.trusted, TELL_S)
    trial.told = running.told()
    if not trial.mended and "certificate" in running.refusal:
        trial.told.append("not_trusted")  # a client says so
    elif not trial.mended and trial.kind == "first-user" and "UnauthenticatedError" in running.refusal:
        trial.told.append("nobody_gets_in")  # so do clients here
    if trial.told:
        trial.mended, trial.served = False, True


def _harm(file: Path, harm: str, other: Path, draw: Random) -> None:
    data = bytearray(file.read_bytes()) if file.exists() else bytearray()
    match harm:
        case "flip" if data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            file.write_bytes(data)
        case "cut":
            file.write_bytes(data[: len(data) // 2])
        case "extend":
            file.write_bytes(data + draw.randbytes(64))
        case "zero":
            at = draw.randrange(max(1, len(data) - PAGE_BYTES + 1))
            size = min(PAGE_BYTES, len(data) - at)
            data[at : at + size] = bytes(size)
            file.write_bytes(data)
        case "swap":
            file.write_bytes(other.read_bytes())
        case "duplicate":
            file.with_name(f"{file.name}.copy").write_bytes(data)
        case "delete":
            file.unlink()
        case "empty":
            file.write_bytes(b"")
        case "forbid":
            file.chmod(0)


@contextmanager
def _as_before() -> Iterator[None]:
    yield


@contextmanager
def _as_others(home: Path) -> Iterator[None]:
    """A superuser may read everything: be nobody in particular, who owns the folder, for a while."""
    if os.geteuid():
        yield
        return
    for path in (home.parent, home, *home.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def run_trials(
    chosen: Callable[[list[Trial]], list[Trial]], told: Callable[[Trial], None] = lambda _: None
) -> list[Trial]:
    """Run those that `chosen` takes; `told` hears of each."""
    with place() as where:
        outcomes = []
        for trial in chosen(list(all_trials())):
            outcomes.append(try_out(trial, where))
            told(trial)
        return outcomes
