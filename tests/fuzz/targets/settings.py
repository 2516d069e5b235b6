"""Files that say what a node or a local cluster is: `node.toml` and `cluster.json`."""

from pathlib import Path

import msgspec

from antiphon.client.local_folder import CLUSTER_FILE, load_cluster, servers_of
from antiphon.errors import ForeignDirectoryError, InvalidRequestError, NewerFormatError
from antiphon.node.config import CONFIG_FILE, Member, NodeConfig, load_config, save_config
from antiphon.security.settings import Tls
from antiphon.tools.cluster_files import new_cluster, save_cluster
from tests.fuzz.target import FolderTarget, check


class NodeToml(FolderTarget):
    """`node.toml`, as a node reads it at its start and `antiphon up` writes it again."""

    def __init__(self) -> None:
        super().__init__()
        self._file = self.folder / CONFIG_FILE

    def seeds(self) -> list[bytes]:
        members = [Member(number, f"127.0.0.1:{7400 + number}") for number in range(3)]
        config = NodeConfig(cluster_id="c", node_id=1, nodes=members)
        save_config(config, self.folder)
        plain = self._file.read_bytes()
        config.security.tls = Tls("node.crt", "node.key", "ca.crt", "required")
        config.security.super_users = ["User:a"]
        config.security.peer_key = "peer.key"
        config.ports.peer = 7500
        save_config(config, self.folder)
        return [
            plain,
            self._file.read_bytes(),
            b'cluster_id="a"\nnode_id=0\nnodes=[{id=0, native="x:1"}]\ndir="/data"\n[scrub]\nbytes_per_s=1\n',
        ]

    def run(self, data: bytes) -> None:
        self._file.write_bytes(data)
        try:
            config = load_config(self.folder)
        except (InvalidRequestError, NewerFormatError):
            return
        save_config(config, self.folder)
        again = load_config(self.folder)
        config.dir = (
            again.dir
        )  # it is not written: a file is beside its data, unless a person has said otherwise
        check(again == config, "settings are others after they were written")


class ClusterJson(FolderTarget):
    """`cluster.json`, as clients and commands read it."""

    def __init__(self) -> None:
        super().__init__()
        self._file = self.folder / CLUSTER_FILE

    def seeds(self) -> list[bytes]:
        cluster = new_cluster(self.folder, 3, "127.0.0.1", "oxia")
        for node in cluster.nodes:
            node.native = f"127.0.0.1:{7400 + node.id}"
        secure = msgspec.structs.replace(cluster, secure=True, names=["example.org"], host="0.0.0.0")
        return [msgspec.json.encode(cluster), msgspec.json.encode(secure)]

    def run(self, data: bytes) -> None:
        self._file.write_bytes(data)
        try:
            cluster = load_cluster(self.folder)
        except (ForeignDirectoryError, NewerFormatError):
            return
        if cluster is None:
            check(False, "a file is there and not found")
            return
        check(bool(cluster.listeners), "a cluster has no listeners")
        servers_of(cluster)
        for node in cluster.nodes:
            check(Path(node.dir).parent == self.folder, "a node's folder is elsewhere")
            cluster.advertised(node.native)
        save_cluster(self.folder, cluster)
        check(load_cluster(self.folder) == cluster, "a description is another one after it was written")
