"""The directory of a local cluster, as whoever wants to reach that cluster reads it.

`DIR/cluster.json` is written by `antiphon up` and read by clients and by every other command that is given `--dir`. A
node's own truth is in its folder (`node.toml`, identity, logs); this file only says which folders belong together and where
they listen.
"""

import contextlib
import json
from pathlib import Path
from typing import Final

import msgspec

from antiphon.errors import (
    UNDECODABLE,
    AntiphonError,
    ForeignDirectoryError,
    InvalidRequestError,
    NewerFormatError,
)

DEFAULT_DIR: Final = Path("antiphon-data")
"""Where `antiphon up` makes a cluster, and where clients and commands look for one: in the working directory."""
FORMAT: Final = 1
CLUSTER_FILE: Final = "cluster.json"
LISTENERS: Final = ("native", "kafka", "http", "oxia")
PEER_LISTENER: Final = "peer"  # for other nodes, where they share a key
EVERYWHERE: Final = ("0.0.0.0", "")  # noqa: S104 - compared
# Of a cluster that is made with --secure: whom its clients trust, and who they may log in as.
AUTHORITY_FILE: Final = "authority.pem"
FIRST_USER: Final = "admin"
PASSWORD_FILE: Final = "admin.password"  # noqa: S105 - the name of a file


class LocalNode(msgspec.Struct):
    """One node of a local cluster. Addresses are `host:port` of its last start, empty where a listener is off.

    `added`: it joined later; the others chose the voters of `__cluster` without it.
    """

    id: int
    dir: str
    native: str = ""
    kafka: str = ""
    oxia: str = ""
    http: str = ""
    added: bool = False
    peer: str = ""


class LocalClusterFile(msgspec.Struct):
    """The contents of `cluster.json`. `founded`: all of its nodes have been up together.

    `peer_key`: the file with the key that the nodes share; empty in clusters that an earlier version made.
    `secure`: made with TLS and authentication on every listener. `names`: further names and addresses for its certificates.
    `insecure`: it may do without where others than this machine reach it.
    """

    format: int
    cluster_id: str
    host: str
    profile: str
    nodes: list[LocalNode]
    founded: bool = True
    peer_key: str = ""
    secure: bool = False
    names: list[str] = []
    insecure: bool = False

    @property
    def public_host(self) -> str:
        """What clients are told to connect to: the first of `names` where the nodes listen on every address."""
        return self.names[0] if self.host in EVERYWHERE and self.names else self.host

    def advertised(self, address: str) -> str:
        """A listener's address as clients are told it."""
        if self.host not in EVERYWHERE:
            return address
        host, port = self.public_host, address.rpartition(":")[2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def listeners(self) -> tuple[str, ...]:
        """The listeners that each node has."""
        return (*LISTENERS, PEER_LISTENER) if self.peer_key else LISTENERS


def load_cluster(directory: Path) -> LocalClusterFile | None:
    """Read `cluster.json`; None where there is none."""
    path = directory / CLUSTER_FILE
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise InvalidRequestError(f"{directory} is a file; give a directory with --dir") from None
    try:
        format_ = json.loads(raw).get("format")
        if isinstance(format_, int) and format_ > FORMAT:
            raise NewerFormatError(
                f"{path} has format {format_}, this version reads up to {FORMAT}: use the newer antiphon that wrote it"
            )
        cluster = msgspec.json.decode(raw, type=LocalClusterFile)
    except (*UNDECODABLE, AttributeError) as error:
        raise ForeignDirectoryError(
            f"{path} is not a cluster description ({error}); use another --dir"
        ) from None
    for node in cluster.nodes:  # the directory may have been moved since
        if (name := Path(node.dir).name) in {"", ".."}:
            raise ForeignDirectoryError(
                f"{path} is not a cluster description (node {node.id} has no folder); use another --dir"
            )
        node.dir = str(directory / name)
    return cluster


def find_cluster(directory: Path) -> LocalClusterFile:
    """Read `cluster.json` or say what to do about it not being there."""
    cluster = load_cluster(directory)
    if cluster is None:
        raise AntiphonError(
            f"no cluster in {directory}: start one with `antiphon up --dir {directory}`, or name its --dir"
        )
    return cluster


def servers_of(cluster: LocalClusterFile) -> str:
    """The native addresses of its nodes."""
    return ",".join(node.native for node in cluster.nodes)


def local_servers(servers: str, directory: Path) -> tuple[str, LocalClusterFile | None]:
    """Whom to ask: `servers`, if there are any, else the local cluster in `directory`. If all of them are nodes of that
    cluster, it comes too: a client finds in its directory how to reach it.

    Raises AntiphonError when nothing is given and there is no cluster.
    """
    if not servers:
        cluster = find_cluster(directory)
        return servers_of(cluster), cluster
    with contextlib.suppress(AntiphonError, OSError):
        cluster = find_cluster(directory)
        own = {each for node in cluster.nodes for each in (node.native, cluster.advertised(node.native))}
        if {text.strip() for text in servers.split(",")} <= own:
            return servers, cluster
    return servers, None
