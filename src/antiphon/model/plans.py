"""What a request to the coordinator would come to: its first decisions, before anything moves."""

from typing import Final

import msgspec

SHOWN_MAX: Final = 1_000  # shards that a plan lists; `changed` counts all


class PlannedShard(msgspec.Struct, frozen=True, kw_only=True):
    """One shard that would change. A shard that is to be made has no id yet (-1).

    Attributes:
        what: made, removed, moved (other nodes), elected (a new term), led (the same nodes, another preferred leader) or
            changed (anything else, such as its settings).
        nodes: where it is; empty: nowhere yet.
        to_nodes: where it is to be, the preferred leader first.
        leader: who leads it now; -1: nobody.
        to_leader: who is to lead it; -1: an election decides.
    """

    topic: str
    shard: int
    shard_id: int
    what: str
    nodes: tuple[int, ...]
    to_nodes: tuple[int, ...]
    leader: int
    to_leader: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator would decide first, by the metadata of one version. `settings`: of the topic, afterwards."""

    metadata_version: int
    changed: int
    shards: tuple[PlannedShard, ...]
    settings: dict[str, str] = {}
