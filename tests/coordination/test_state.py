"""The fold of `__cluster`, its deltas, and a node's view of them."""

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.coordination import cluster_records
from antiphon.coordination import state as state_module
from antiphon.coordination.cluster_records import (
    ClusterRecord,
    ShardRecord,
    access_record,
    cluster_record,
    counter_record,
    headers_of,
    node_record,
    settings_record,
    shard_gone,
    shard_record,
    subscription_record,
    topic_gone,
    topic_record,
)
from antiphon.coordination.state import ClusterState
from antiphon.invariants import InvariantError
from antiphon.model.access import Acl, Credential, Operation, Pattern, Permission, Resource, User
from antiphon.model.client_metrics import Subscription
from antiphon.model.cluster import MetadataDelta, MetadataView
from antiphon.model.metadata import Kind, NodeMeta, ShardMeta, ShardStatus, SplitPhase, TopicMeta
from antiphon.model.node_settings import ALL_NODES, NodeSettings
from antiphon.model.quotas import Quota

if TYPE_CHECKING:
    from antiphon.coordination.actions import Record


def topic(name: str, number: int, **config: str) -> TopicMeta:
    return TopicMeta(name, bytes([number]) * 16, Kind.TOPIC, 3, "oxia", (), config)


def shard(number: int, of: int, index: int = 0, leader: int = -1) -> ShardRecord:
    status = ShardStatus.ONLINE if leader >= 0 else ShardStatus.ELECTION
    return ShardRecord(bytes([of]) * 16, ShardMeta(number, index, (0, 1, 2), leader, 1, status))


def delta(state: ClusterState, base: int) -> MetadataDelta:
    return state.delta(base, cluster_id="c", controller=1, coordinator_term=1)


def view_equals(view: MetadataView, state: ClusterState) -> None:
    cluster = view.cluster()
    assert cluster.version == state.version
    assert {node.node_id: node for node in cluster.nodes} == state.nodes
    assert {t.name: t for t in cluster.topics} == {
        name: state.topic_with_shards(name) for name in state.topics
    }
    assert view.shard_ids() == sorted(state.shards)
    for shard_id, record in state.shards.items():
        found = view.shard(shard_id)
        assert found is not None
        assert found[1] == record.meta
        assert found[0].topic_id == record.topic_id


def test_fold_and_look_ups() -> None:
    state = ClusterState()
    state.apply(
        [cluster_record(ClusterRecord("c")), node_record(NodeMeta(1, "h:1")), counter_record("shard", 3)], 1
    )
    state.apply(
        [topic_record(topic("t", 7)), shard_record(shard(1, 7)), shard_record(shard(2, 7, 1, leader=2))], 4
    )
    assert (state.version, state.counters, state.led_by) == (4, {"shard": 3}, {2: 1})
    assert [s.shard_id for s in state.topic_with_shards("t").shards] == [1, 2]
    assert list(state.shards_on[0]) == [1, 2]
    state.apply([topic_gone("t")], 3)
    assert "t" in state.topics, "an old batch is ignored"
    state.apply([shard_gone(1), shard_gone(2), topic_gone("t")], 5)
    assert not state.topics
    assert not state.shards
    assert state.led_by == {2: 0}
    assert state.preferred_on == {0: 0}
    assert list(state.shards_on[0]) == []


def test_records_are_written_as_documented() -> None:
    """Golden bytes of `docs/coordination.md`: logs that exist must stay readable."""
    shard_meta = ShardMeta(5, 0, (0, 1, 2), 1, 7, ShardStatus.ONLINE, (0, 1))
    written = [
        cluster_record(ClusterRecord("c", bootstrapped=True)),
        node_record(NodeMeta(1, "h:7401", incarnation="i", disk_id="d")),
        topic_record(topic("flights", 1, flush="always")),
        shard_record(ShardRecord(b"\x01" * 16, shard_meta, (2,))),
        counter_record("shard", 6),
    ]
    ones = "01" * 16
    assert [(key.decode(), value.hex() if value else None) for key, value in written] == [
        ("cluster", "92a163c3"),
        ("node/1", "9c01a6683a37343031a0a0a0c3a169a164c2a0a003"),
        (
            "topic/flights",
            f"98a7666c6967687473c410{ones}a5746f70696303a46f7869619081a5666c757368a6616c77617973c2",
        ),
        (
            "shard/5",
            f"94c410{ones}dc00130500930001020107a64f6e6c696e6592000100a86d616a6f726974799090009090c0009000c09102ff",
        ),
        ("counter/shard", "06"),
    ]
    state = ClusterState()
    shorter = f"93c410{ones}970500930001020107a64f6e6c696e659200019102"
    older = [(b"node/3", bytes.fromhex("9203a3683a31")), (b"shard/5", bytes.fromhex(shorter))]
    state.apply([*written[:3], *older], 1)
    assert state.shards[5] == ShardRecord(b"\x01" * 16, shard_meta, (2,))
    assert state.nodes[3] == NodeMeta(3, "h:1"), "fields that an older version did not write have defaults"


def test_records_of_access_are_written_as_documented() -> None:
    """Golden bytes, and the format that keeps versions out which do not know these kinds."""
    acl = Acl("User:alice", Resource.TOPIC, "orders-", Operation.READ, Pattern.PREFIXED, Permission.DENY)
    user = User("alice", (Credential("SCRAM-SHA-256", b"s" * 12, 4096, b"k" * 2, b"v" * 2),))
    quota = Quota("alice", "", consumer_byte_rate=1024.0)
    written = [
        access_record("user", "alice", user),
        access_record("acl", acl.key, acl),
        access_record("quota", quota.key, quota),
    ]
    assert [(key.decode(), value.hex() if value else None) for key, value in written] == [
        (
            "user/alice",
            "92a5616c6963659195ad534352414d2d5348412d323536c40c737373737373737373737373cd1000c4026b6bc4027676",
        ),
        (
            "acl/71df7ad00c263961e5f1ead9ee4090bd",
            "97aa557365723a616c696365a5746f706963a76f72646572732da472656164a87072656669786564a464656e79a12a",
        ),
        ("quota/73505fb8add1bff4011da8ca86ea6abf", "99a5616c696365a0c0c0cb4090000000000000c0c0c0c0"),
    ]
    state = ClusterState()
    before = (b"quota/" + quota.key.encode(), bytes.fromhex("98a5616c696365a0c0c0cb4090000000000000c0c0c0"))
    state.apply([*written[:2], before], 1)
    assert state.access.quotas == {quota.key: quota}, "an earlier version did not know `connections`"
    state.apply(written, 2)
    assert (state.access.users, state.access.acls, state.access.quotas) == (
        {"alice": user},
        {acl.key: acl},
        {quota.key: quota},
    )
    assert {headers_of(key, value) for key, value in written} == {(("antiphon.format", b"2"),)}
    assert headers_of(b"topic/t", None) == ()


def test_a_compacted_topic_is_not_for_older_versions() -> None:
    def written(**config: str) -> tuple[tuple[str, bytes], ...]:
        named = {name.replace("_", "."): value for name, value in config.items()}
        return headers_of(*topic_record(TopicMeta("t", b"i" * 16, Kind.TOPIC, 1, "oxia", (), named)))

    assert written() == written(cleanup_policy="delete") == ()
    assert (
        written(cleanup_policy="compact")
        == written(cleanup_policy="compact,delete")
        == (("antiphon.format", b"3"),)
    )


def test_a_shard_with_deleted_records_is_not_for_older_versions() -> None:
    def written(deleted_before: int) -> tuple[tuple[str, bytes], ...]:
        meta = ShardMeta(5, 0, (0, 1, 2), deleted_before=deleted_before)
        return headers_of(*shard_record(ShardRecord(b"i" * 16, meta)))

    assert (written(0), written(7)) == ((), (("antiphon.format", b"6"),))
    assert headers_of(*shard_gone(5)) == ()


def test_access_reaches_nodes_and_never_clients() -> None:
    state, view = ClusterState(), MetadataView("c")
    acl = Acl("User:alice", Resource.TOPIC, "t", Operation.READ)
    state.apply([access_record("user", "alice", User("alice")), access_record("acl", acl.key, acl)], 1)
    assert view.apply(delta(state, -1))
    assert (list(view.access.users), list(view.access.acls.values())) == (["alice"], [acl])
    state.apply([access_record("user", "bob", User("bob")), access_record("user", "alice", None)], 2)
    before = view.access.version
    assert view.apply(delta(state, 1))
    assert (list(view.access.users), list(view.access.acls.values())) == (["bob"], [acl])
    assert view.access.version > before
    state.apply([node_record(NodeMeta(1, "h:1"))], 3)
    before = view.access.version
    assert view.apply(delta(state, 2))
    assert view.access.version == before, "what is kept of decisions stays while nothing of this changes"
    assert b"bob" not in msgspec.msgpack.encode(view.cluster())
    other = MetadataView("c")
    assert other.apply(delta(state.clone(), -1))
    assert list(other.access.users) == ["bob"]


def test_settings_of_nodes_are_written_as_documented() -> None:
    """Golden bytes, and the format that keeps versions out which go by their files alone."""
    everybody = NodeSettings(ALL_NODES, {"log_level": "debug", "num_partitions": "3"})
    own = NodeSettings(2, {"num_partitions": "5"})
    written = [settings_record(everybody), settings_record(own)]
    assert [(key.decode(), value.hex() if value else None) for key, value in written] == [
        (
            "settings/-1",
            "92ff82a96c6f675f6c6576656ca56465627567ae6e756d5f706172746974696f6e73a133",
        ),
        ("settings/2", "920281ae6e756d5f706172746974696f6e73a135"),
    ]
    gone = settings_record(NodeSettings(2, {}))
    assert gone == (b"settings/2", None)
    assert {headers_of(key, value) for key, value in (*written, gone)} == {(("antiphon.format", b"9"),)}
    state, view = ClusterState(), MetadataView("c")
    state.apply(written, 1)
    assert view.apply(delta(state, -1))
    assert view.node_settings == state.node_settings == {ALL_NODES: everybody, 2: own}
    assert state.object_count == 2
    state.apply([settings_record(own)], 2)  # a checkpoint repeats it
    assert delta(state, 1).node_settings == ()
    state.apply([gone, settings_record(NodeSettings(3, {"log_level": "error"}))], 3)
    assert view.apply(delta(state, 1))
    assert view.node_settings == state.node_settings
    assert 2 not in view.node_settings
    assert view.apply(delta(state.clone(), -1))
    assert view.node_settings == state.node_settings
    other = ClusterState()
    other.apply([settings_record(own)], 9)
    assert view.apply(delta(other, -1))
    assert view.node_settings == {2: own}, "what is not named is not there"
    for bad in (
        (b"settings/2", written[0][1]),
        (b"settings/x", written[1][1]),
        (b"settings/02", written[1][1]),
    ):
        with pytest.raises(InvariantError):
            ClusterState().apply([bad], 1)


def test_subscriptions_are_written_as_documented() -> None:
    """Golden bytes, and the format that keeps versions out which would tell clients of no subscription."""
    slow = Subscription("slow", {"interval.ms": "5000", "metrics": "*"})
    written = subscription_record(slow)
    gone = subscription_record(Subscription("slow", {}))
    assert (written[0], written[1].hex() if written[1] else None) == (
        b"subscription/slow",
        "92a4736c6f7782ab696e74657276616c2e6d73a435303030a76d657472696373a12a",
    )
    assert gone == (b"subscription/slow", None)
    assert {headers_of(key, value) for key, value in (written, gone)} == {(("antiphon.format", b"10"),)}
    state, view = ClusterState(), MetadataView("c")
    state.apply([written], 1)
    assert view.apply(delta(state, -1))
    assert view.subscriptions == state.subscriptions == {"slow": slow}
    assert state.object_count == 1
    state.apply([written], 2)  # a checkpoint repeats it
    assert delta(state, 1).subscriptions == ()
    other = Subscription("other", {"metrics": "a."})
    state.apply([gone, subscription_record(other)], 3)
    assert view.apply(delta(state, 1))
    assert view.subscriptions == state.subscriptions == {"other": other}
    assert view.apply(delta(state.clone(), -1))
    assert view.subscriptions == {"other": other}
    afresh = ClusterState()
    afresh.apply([written], 9)
    assert view.apply(delta(afresh, -1))
    assert view.subscriptions == {"slow": slow}, "what is not named is not there"
    empty = msgspec.msgpack.encode(Subscription("slow", {}))
    for bad in ((b"subscription/fast", written[1]), (b"subscription/slow", empty)):
        with pytest.raises(InvariantError):
            ClusterState().apply([bad], 1)


def test_unknown_records_are_refused() -> None:
    with pytest.raises(InvariantError):
        ClusterState().apply([(b"what/1", b"")], 1)
    with pytest.raises(InvariantError):
        ClusterState().apply([(b"counter/x", None)], 1)
    state = ClusterState()
    with pytest.raises(InvariantError):
        state.apply([counter_record("shard", 3), (b"node/1", b"\xff")], 1)
    assert (state.version, state.counters) == (0, {}), "nothing of the batch counts"


KEYS = st.binary(max_size=12) | st.sampled_from(
    [b"cluster", b"node/1", b"topic/t", b"shard/1", b"counter/shard", b"shard/x", b"node/01", b"topic/"]
)
NO_SHARD = ShardRecord(bytes(16), ShardMeta(1, 0, ()))
VALUES = (
    st.none()
    | st.binary(max_size=20)
    | st.sampled_from([record[1] for record in (counter_record("x", 1), shard_record(shard(1, 7)))])
    | st.sampled_from([topic_record(topic("t", 7))[1], node_record(NodeMeta(1, "h:1"))[1]])
    | st.sampled_from([shard_record(NO_SHARD)[1], cluster_record(ClusterRecord("c"))[1]])
)


@given(st.lists(st.tuples(KEYS, VALUES), max_size=6))
def test_no_record_stops_who_folds_what_is_there(records: "list[Record]") -> None:
    """What can be read counts, what cannot is told of, and what was folded can be handed on."""
    state, again = ClusterState(), ClusterState()
    passed_over = {place for place, _ in state.apply_readable(records, 9)}
    assert state.version == 9
    again.apply([record for place, record in enumerate(records) if place not in passed_over], 9)
    assert delta(state, -1) == delta(again, -1)
    assert (state.counters, state.cluster) == (again.counters, again.cluster)
    for place in passed_over:
        with pytest.raises(InvariantError):
            ClusterState().apply([records[place]], 1)


ENUMS = (Kind, ShardStatus, SplitPhase, Resource, Operation, Pattern, Permission)


def test_what_older_versions_could_not_read_needs_another_format() -> None:
    """They would pass it over. Who changes these raises FORMAT and writes FORMAT_HEADER with what needs it."""
    kinds = set(cluster_records._DECODERS)
    values = {enum.__name__: [str(value.value) for value in enum] for enum in ENUMS}
    assert (cluster_records.FORMAT, kinds, values) == (
        13,  # nodes that know members of both protocols in one group say so; no record has it
        {
            "cluster",
            "node",
            "topic",
            "shard",
            "counter",
            "user",
            "acl",
            "quota",
            "checkpoint",
            "voters",
            "recovery",
            "settings",
            "subscription",
        },
        {
            "Kind": ["topic", "table"],
            "ShardStatus": ["Online", "Election", "CandidateFound", "Offline"],
            "SplitPhase": ["Copy", "Freeze", "Release"],
            "Resource": ["topic", "group", "cluster", "transactional_id", "table"],
            "Operation": [
                "all",
                "read",
                "write",
                "create",
                "delete",
                "alter",
                "describe",
                "cluster_action",
                "describe_configs",
                "alter_configs",
                "idempotent_write",
            ],
            "Pattern": ["literal", "prefixed"],
            "Permission": ["allow", "deny"],
        },
    )


def test_clone_goes_its_own_way() -> None:
    state = ClusterState()
    state.apply([topic_record(topic("t", 7)), shard_record(shard(1, 7, leader=0))], 1)
    other = state.clone()
    other.drop_topic("t")
    assert "t" in state.topics
    assert list(state.shards_on[0]) == [1]
    assert state.led_by == {0: 1}


def test_delta_of_a_topic_that_was_created_again() -> None:
    state, view = ClusterState(), MetadataView("c")
    state.apply([topic_record(topic("t", 1)), shard_record(shard(1, 1))], 1)
    assert view.apply(delta(state, -1))
    state.apply([topic_gone("t"), shard_gone(1)], 2)
    state.apply([topic_record(topic("t", 2)), shard_record(shard(2, 2))], 3)
    change = delta(state, 1)
    assert change.base_version == 1
    assert change.gone_topics == (bytes([1]) * 16,)
    assert view.apply(change)
    view_equals(view, state)
    assert view.shard(1) is None
    assert view.topic_by_id(bytes([1]) * 16) is None


def test_view_refuses_what_does_not_fit() -> None:
    state, view = ClusterState(), MetadataView("c")
    state.apply([node_record(NodeMeta(1, "h:1"))], 1)
    first = delta(state, -1)
    state.apply([node_record(NodeMeta(2, "h:2"))], 2)
    second = delta(state, 1)
    assert not view.apply(second), "a gap"
    assert not view.apply(msgspec.structs.replace(first, cluster_id="other"))
    assert view.apply(first)
    assert view.apply(second)
    assert not view.apply(first), "old"
    view_equals(view, state)
    assert not view.apply(delta(state, 99)) or view.version == 2


def test_view_keeps_the_newer_coordinator() -> None:
    state, view = ClusterState(), MetadataView("c")
    state.apply([node_record(NodeMeta(1, "h:1"))], 1)
    assert view.apply(state.delta(-1, cluster_id="c", controller=5, coordinator_term=9))
    assert view.apply(state.delta(1, cluster_id="c", controller=4, coordinator_term=8))
    assert view.cluster().controller == 5
    assert view.apply(state.delta(1, cluster_id="c", controller=6, coordinator_term=10))
    assert view.cluster().controller == 6


def test_journal_is_bounded_and_then_everything_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "JOURNAL_ENTRIES_MAX", 3)
    state = ClusterState()
    for version in range(1, 11):
        state.apply([node_record(NodeMeta(version, "h:1"))], version)
    assert len(delta(state, 8).nodes) == 2
    assert delta(state, 7).base_version == 7
    full = delta(state, 5)
    assert full.base_version == -1
    assert len(full.nodes) == 10


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_deltas_from_any_version_lead_to_the_same_view(data: st.DataObject) -> None:
    state = ClusterState()
    views = {0: MetadataView("c")}
    views[0].apply(delta(state, -1))
    alive: dict[str, int] = {}
    shards = 0
    for version in range(1, data.draw(st.integers(1, 12)) + 1):
        records: list[Record] = []
        for _ in range(data.draw(st.integers(0, 3))):
            match data.draw(st.sampled_from(["node", "create", "drop", "lead"])):
                case "node":
                    records.append(
                        node_record(NodeMeta(data.draw(st.integers(0, 3)), "h:1", incarnation=str(version)))
                    )
                case "create":
                    name = data.draw(st.sampled_from("ab"))
                    if name not in alive:
                        shards += 1
                        alive[name] = shards
                        records += [topic_record(topic(name, shards)), shard_record(shard(shards, shards))]
                case "drop" if alive:
                    name = data.draw(st.sampled_from(sorted(alive)))
                    records += [shard_gone(alive.pop(name)), topic_gone(name)]
                case _ if alive:
                    number = alive[data.draw(st.sampled_from(sorted(alive)))]
                    records.append(shard_record(shard(number, number, leader=data.draw(st.integers(0, 2)))))
        state.apply(records, version)
        views[version] = MetadataView("c")
        views[version].apply(delta(state, -1))
    decoder = msgspec.msgpack.Decoder(MetadataDelta)
    for base, view in views.items():
        change = decoder.decode(msgspec.msgpack.encode(delta(state, base)))
        assert view.apply(change)
        view_equals(view, state)
