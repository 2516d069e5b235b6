"""What `antiphon up --secure` puts into the folder of a cluster, and how commands find their way in there.

| in DIR | |
|---|---|
| `authority.pem`, `authority.key` | signs the certificates of the listeners for clients; clients trust `authority.pem` |
| `peers-authority.pem`, `peers-authority.key` | signs what nodes show to each other, and nothing else |
| `admin.password` | of the first user, who may do everything |
| `client.env` | the settings of a client, for a shell; none of them is a secret |

| in DIR/node-N | |
|---|---|
| `node.pem`, `node.key`, `authority.pem` | of the listeners for clients |
| `peer.pem`, `peer-tls.key`, `peers-authority.pem` | of the listener for nodes, and to show to other nodes |
| `first-user` | keys of the first user, on node 0 until the cluster has that user |

Each file is made where it is missing, so a start that was broken off goes on at the next one. Certificates are made anew
before they end and when they lack a name; those that another authority signed are left alone.
"""

import os
import shlex
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from antiphon.client.local_folder import (
    AUTHORITY_FILE,
    FIRST_USER,
    PASSWORD_FILE,
    LocalClusterFile,
    LocalNode,
)
from antiphon.errors import AntiphonError, InvalidRequestError, UnavailableError
from antiphon.security.private_files import replace_text, write_private
from antiphon.security.settings import Security, Tls
from antiphon.tools.cluster_files import SETTINGS_FILE

if TYPE_CHECKING:
    from antiphon.node.config import NodeConfig

FIRST_USER_FILE: Final = "first-user"
CLIENTS: Final = Tls("node.pem", "node.key", AUTHORITY_FILE)
PEERS: Final = Tls("peer.pem", "peer-tls.key", "peers-authority.pem")
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
LOGIN_WAIT_S: Final = 20.0
POLL_S: Final = 0.02


def new_security(cluster: LocalClusterFile) -> Security:
    """The section `[security]` of a new node of this cluster."""
    if not cluster.secure:
        return Security(insecure=cluster.insecure, peer_key=cluster.peer_key)
    return Security(
        authentication=True,
        tls=Tls(CLIENTS.certificate, CLIENTS.key, CLIENTS.authority),
        peer_tls=Tls(PEERS.certificate, PEERS.key, PEERS.authority),
        peer_key=cluster.peer_key,
        first_user=FIRST_USER_FILE,
        super_users=[f"User:{FIRST_USER}"],
    )


def secure_cluster(directory: Path, cluster: LocalClusterFile) -> None:
    """See to it that the folder has what is the cluster's. Raises OSError, InvalidRequestError."""
    if not cluster.secure:
        return
    for file, purpose in missing_authorities(directory).items():
        if cluster.founded:
            raise InvalidRequestError(f"{file} is gone: put it back from a backup")
        make_authority(file, f"antiphon {cluster.cluster_id[:8]} {purpose}")
    if not (directory / PASSWORD_FILE).exists() and not cluster.founded:
        from antiphon.security.passwords import new_password

        write_private(directory / PASSWORD_FILE, f"{new_password()}\n".encode())
    settings = client_settings(directory, cluster)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    replace_text(directory / SETTINGS_FILE, "\n".join(lines) + "\n")


def missing_authorities(directory: Path) -> dict[Path, str]:
    """The files of authorities that a folder lacks, with what each is for."""
    purposes = {CLIENTS.authority: "authority", PEERS.authority: "authority of nodes"}
    return {directory / name: why for name, why in purposes.items() if not (directory / name).exists()}


def make_authority(file: Path, name: str) -> None:
    """Make an authority: its certificate, and its key beside it. Raises OSError."""
    from antiphon.security.authority import new_authority

    issued = new_authority(name)
    write_private(file.with_suffix(".key"), issued.key)
    write_private(file, issued.certificate)


def secure_node(directory: Path, cluster: LocalClusterFile, node: LocalNode, config: "NodeConfig") -> None:
    """See to it that a node's folder has what `config` names. Raises OSError, InvalidRequestError."""
    if not cluster.secure:
        return
    folder, security = Path(node.dir), config.security
    for tls, ours in ((security.tls, CLIENTS), (security.peer_tls, PEERS)):
        if (tls.certificate, tls.key, tls.authority) == (ours.certificate, ours.key, ours.authority):
            certify(directory, folder, ours, f"antiphon node {node.id}", _hosts(cluster, config))
    first = folder / FIRST_USER_FILE
    if node is cluster.nodes[0] and not cluster.founded and not first.exists():
        from antiphon.server.first_user import write_first_user

        write_first_user(first, FIRST_USER, _password(directory))


def _hosts(cluster: LocalClusterFile, config: "NodeConfig") -> tuple[str, ...]:
    """Names and addresses by which clients reach a node."""
    named = (cluster.host, config.public_host, *cluster.names, *LOOPBACK_NAMES, socket.gethostname())
    return tuple(dict.fromkeys(name for name in named if name))


def certify(directory: Path, folder: Path, tls: Tls, name: str, hosts: tuple[str, ...]) -> None:
    """See to it that a folder has the certificate of `tls`, for these hosts, by the authority in `directory`.

    Raises OSError, InvalidRequestError.
    """
    from antiphon.security.authority import Issued, is_from, is_good_for, is_pair, issue

    authority = directory / tls.authority
    signer = authority.read_bytes()
    if not (folder / tls.authority).exists():
        write_private(folder / tls.authority, signer)
    certificate, key = folder / tls.certificate, folder / tls.key
    if certificate.exists() and key.exists():
        found = Issued(certificate.read_bytes(), key.read_bytes())
        if not is_from(found.certificate, signer) or (
            is_good_for(found.certificate, hosts) and is_pair(found)
        ):
            return
    try:
        signing = authority.with_suffix(".key").read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"{certificate} has to be made, and {authority.with_suffix('.key')} cannot be read ({error.strerror}): put that "
            "back, or have the certificate signed elsewhere"
        ) from None
    issued = issue(Issued(signer, signing), name, hosts)
    write_private(key, issued.key)
    write_private(certificate, issued.certificate)


def _password(directory: Path) -> str:
    return (directory / PASSWORD_FILE).read_text().rstrip("\n")


# -- clients ------------------------------------------------------------------------------------------------------


def client_settings(directory: Path, cluster: LocalClusterFile) -> dict[str, str]:
    """The environment of a client of a secure cluster: where it is, whom to trust, who to log in as."""
    return {
        "ANTIPHON_SERVERS": ",".join(cluster.advertised(node.native) for node in cluster.nodes),
        "ANTIPHON_TLS": str(directory / AUTHORITY_FILE),
        "ANTIPHON_USER": FIRST_USER,
        "ANTIPHON_PASSWORD_FILE": str(directory / PASSWORD_FILE),
    }


def use_settings(directory: Path, cluster: LocalClusterFile) -> None:
    """From now on the clients of this process, and of those that it starts, reach the secure cluster in this folder.

    What the environment says goes first: a user of one's own, or a token.
    """
    if not cluster.secure:
        return
    settings = client_settings(directory, cluster)
    os.environ.setdefault("ANTIPHON_TLS", settings["ANTIPHON_TLS"])
    if not (os.environ.get("ANTIPHON_USER") or os.environ.get("ANTIPHON_TOKEN")):
        for name in ("ANTIPHON_USER", "ANTIPHON_PASSWORD_FILE"):
            os.environ[name] = settings[name]


def forget_settings() -> None:
    """The clients of this process are for a cluster that it makes itself: settings for another one do not count."""
    for name in ("TLS", "USER", "PASSWORD", "PASSWORD_FILE", "TOKEN"):
        os.environ.pop(f"ANTIPHON_{name}", None)


def wait_for_first_user(directory: Path, cluster: LocalClusterFile, asked: list[int]) -> None:
    """Return when the first user of a new cluster can log in at every node.

    Raises UnavailableError when that takes too long, KeyboardInterrupt once a signal is in `asked`.
    """
    if not cluster.secure or cluster.founded:
        return
    deadline = time.monotonic() + LOGIN_WAIT_S
    problem: AntiphonError | None = None
    waiting = [node.native for node in cluster.nodes]
    while waiting:
        if asked:
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            why = f" ({problem.message})" if problem else ""
            raise UnavailableError(
                f"user {FIRST_USER} cannot log in{why}; see node.log in the nodes' folders"
            )
        if not (Path(cluster.nodes[0].dir) / FIRST_USER_FILE).exists():
            try:
                _log_in(directory, waiting[0])
                waiting.pop(0)
                continue
            except AntiphonError as error:
                problem = error
        time.sleep(POLL_S)


def _log_in(directory: Path, address: str) -> None:
    from antiphon.client.blocking import Cluster
    from antiphon.client.tls import tls_of
    from antiphon.node.config import split_address
    from antiphon.security.account import Account

    account = Account(FIRST_USER, _password(directory))
    with Cluster(
        [split_address(address)], 5000, account=account, tls=tls_of(directory / AUTHORITY_FILE)
    ) as cluster:
        cluster.metadata()
