"""The formats of this version, as a node tells them: what `antiphon upgrade --check` compares between versions.

Whoever gives a file or a message of nodes a new version adds its name here, or raises the number that is here by itself. A
version reads what it writes, and all that earlier ones wrote, unless docs/formats.md says otherwise.
"""

from typing import Final

from antiphon.coordination.cluster_records import FORMAT as METADATA
from antiphon.log.aborted import ABORTED_VERSION
from antiphon.log.compacted_files import VERSION as COMPACTION
from antiphon.log.hard_state import VERSION as HARD_STATE
from antiphon.log.identity import FORMAT as IDENTITY
from antiphon.log.index import INDEX_VERSION
from antiphon.log.inventory import VERSION as INVENTORY
from antiphon.log.recovery import DAMAGE_VERSION
from antiphon.log.snapshot import SNAPSHOT_VERSION, START_VERSION
from antiphon.model.requests import PROTOCOL_VERSION
from antiphon.node.config import CONFIG_FORMAT
from antiphon.node.known_voters import VOTERS_VERSION
from antiphon.node.raft_shards import PLACEMENT_VERSION
from antiphon.partition.multi_files import ORIGINS_VERSION
from antiphon.partition.multi_salvage import SALVAGE_VERSION
from antiphon.partition.table_files import INSTALL_VERSION
from antiphon.table.meta import FORMAT as STORE

_NUMBERS: Final = {
    "native protocol": PROTOCOL_VERSION,
    "metadata": METADATA,
    "node.toml": CONFIG_FORMAT,
    "identity": IDENTITY,
    "hard state": HARD_STATE,
    "inventory": INVENTORY,
    "index": INDEX_VERSION,
    "snapshot": SNAPSHOT_VERSION,
    "aborted": ABORTED_VERSION,
    "damage": DAMAGE_VERSION,
    "compaction": COMPACTION,
    "store": STORE,
    "start": START_VERSION,
    "voters": VOTERS_VERSION,
    "placement": PLACEMENT_VERSION,
    "origins": ORIGINS_VERSION,
    "behind damage": SALVAGE_VERSION,
    "installation": INSTALL_VERSION,
}
FORMATS: Final = tuple((name, number, number) for name, number in _NUMBERS.items())
"""Name, what is written, and up to what is read."""
