"""The options of a simulated world, without those that faults and workloads bring with them: `options.py` adds these."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

LEASE_SKEW_PPM: Final = 50_000
"""A clock that is so much fast runs a tenth faster than one that is so much slow: what a lease allows for."""


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """One world, without its faults and workloads. Times are in the unit of the name's ending."""

    seed: int
    profile: str
    nodes: int
    replicas: int
    topic_shards: int
    table_shards: int
    commit: str  # rule of the topic; empty: the profile's
    fault_ms: int  # length of the phase with faults
    settle_ms: int  # at most so long may it take until everything agrees when faults have stopped
    fault_every_ms: int  # mean time between faults, 0: none
    fault_lasts_ms: int  # mean length of the long ones
    delay_us: tuple[int, int]  # of the network, one way
    clock_skew_ppm: int  # clocks run up to so much faster or slower
    pieces_ppm: int  # chance that a link splits what is written
    store_flush_every: int  # writes after which a table's store flushes, about
    appenders: int
    putters: int
    conditional_ppm: int
    operations_per_s: int = 0  # of all clients together; 0: as fast as they can
    record_bytes: int = 0  # of each record of the topic, besides its value
    commands: str = ""  # of the operator, separated by spaces; empty: all that there are
    topic_config: str = ""  # of the topic: name=value, separated by spaces
    rocks: bool = False  # tables' stores are RocksDB, not the store in memory; it takes a quarter longer
    tries_again: bool = False  # appenders try an append again whose outcome is not known
    whole_readers: bool = False  # followers of the whole topic too, without saying shards
    slow_watchers: bool = False  # they take their time over what they are given
    thread_lag_us: int = 0  # what was done in a thread is known so much later, at most
    store_block_bytes: int = 4096  # of tables' stores: a row of another block is read where one is damaged
    peer_key: bool = False  # nodes prove to each other that they know a key
    scrub: bool = False  # nodes read what is on their disks again and again
    disk_reserve: int = 0  # bytes that nodes keep free for votes and elections on full disks
    table_piece: int = 0  # operations of a table's write, or rows, in one turn of a node; 0: as in real nodes
    client_skew_ppm: int = 0  # their clocks run up to so much faster or slower, and are set wrong
    delete_retention_ms: int = 100_000  # of its tombstones
    cleaner_memory: int = 1 << 20  # for the keys of a pass
    checkpoint_records: int = 0  # of `__cluster`, after which a checkpoint may be due; 0: never
    checkpoint_batch: int = 256  # objects of a checkpoint that are written at a time
    metadata_segment_bytes: int = 1 << 24  # of `__cluster`
    oxia_page_rows: int = 0  # of Oxia's clients, that nodes read at once; 0: as in real nodes
    traced: bool = False  # clients and nodes trace, into memory
    read_lease_ms: int = 0  # of the table; 0: off
    founding_ms: int = 0  # how soon nodes try again before there is a coordinator; 0: as later
    row_log_bytes: int = (
        0  # of the table's log: what is above that goes once it is in the store; 0: all stays
    )
    row_bytes: int = 0  # of each row that putters write, where its value has fewer

    @property
    def moves_replicas(self) -> bool:
        """May a replica leave a node, and a new one of the same shard come to it?"""
        lost = self.most_replicas_gone_weight + self.split_loss_weight
        return self.operator_weight > 0 or self.kafka_admins > 0 or lost > 0

    @property
    def changes_voters(self) -> bool:
        """May other nodes come to vote on `__cluster` than those that founded it?"""
        return any((self.voters_weight, self.voter_gone_weight, self.most_voters_gone_weight))

    @property
    def has_oxia(self) -> bool:
        """Do nodes speak Oxia's protocol?"""
        return any((self.oxia_clients, self.oxia_scanners, self.identities, self.crowds, self.tenants))

    @property
    def has_key(self) -> bool:
        """Do nodes prove that they are nodes? They have to where clients log in."""
        return self.peer_key or self.has_logins

    @property
    def node_skew_ppm(self) -> int:
        """How much faster or slower nodes' clocks run, at most: with leases, no more than leases allow for."""
        has_leases = self.read_lease_ms > 0 or self.leased_clients > 0
        return min(self.clock_skew_ppm, LEASE_SKEW_PPM) if has_leases else self.clock_skew_ppm

    @property
    def has_logins(self) -> bool:
        """Do clients have to log in?"""
        return bool(self.principals or self.tenants or self.identities)

    def words(self) -> str:
        """All options on one line, for a reader."""
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int:
            """An option of a fault or a workload: a number, or a switch."""
