"""All targets by name, with the module and class of each: modules are imported when a target is made."""

from importlib import import_module
from typing import Final

from tests.fuzz.target import Target

TARGETS: Final = {
    "kafka-requests": "messages:KafkaRequests",
    "native-messages": "messages:NativeMessages",
    "batches": "batches:Batches",
    "compressed": "batches:Compressed",
    "log-entries": "batches:LogEntries",
    "row-attributes": "tables:RowAttributes",
    "index-entries": "tables:IndexEntries",
    "prepared-batches": "tables:PreparedBatches",
    "shard-files": "disks:ShardFiles",
    "aborted-files": "disks:AbortedFiles",
    "node-files": "disks:NodeFiles",
    "shard-states": "states:ShardStates",
    "compacted-files": "states:CompactedFiles",
    "multi-files": "states:MultiFiles",
    "node-states": "states:NodeStates",
    "rocks-manifest": "states:RocksManifest",
    "producers": "disks:Producers",
    "metadata": "disks:Metadata",
    "archive": "archived:Archive",
    "backups": "archived:Backups",
    "logins": "secrets:Logins",
    "key-sets": "secrets:KeySets",
    "own-files": "secrets:OwnFiles",
    "kafka": "nodes:Kafka",
    "kafka-login": "nodes:KafkaLogin",
    "native": "nodes:Native",
    "native-login": "nodes:NativeLogin",
    "peer": "nodes:Peer",
    "peer-messages": "nodes:PeerMessages",
    "http": "nodes:Http",
    "http-login": "nodes:HttpLogin",
    "pushed-metrics": "pushed:PushedMetrics",
    "oxia-messages": "oxia:OxiaMessages",
    "oxia-large": "oxia:OxiaLarge",
    "oxia-frames": "oxia:OxiaFrames",
    "oxia": "oxia:Oxia",
    "staged-blobs": "jobs:StagedBlobs",
    "epoch-rows": "jobs:EpochRows",
    "job-rows": "jobs:JobRows",
    "lake-plans": "jobs:LakePlans",
    "group-rows": "groups:GroupRows",
    "classic-rows": "groups:ClassicRows",
    "subscriptions": "groups:Subscriptions",
    "node-toml": "settings:NodeToml",
    "cluster-json": "settings:ClusterJson",
}


def make(name: str) -> Target:
    """The target of this name."""
    module, _, cls = TARGETS[name].partition(":")
    made: Target = getattr(import_module(f"tests.fuzz.targets.{module}"), cls)()
    return made
