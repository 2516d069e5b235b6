"""S3, Fluvio's replica assignment and election: the coordinator's part of it, claim by claim.

The coordinator is the product's, the replicas are models of the live rule (see `tests.coordination.models`). What replicas
do by themselves (S3.22-S3.29) is in `test_s3_core`, what takes sockets in
`test_s3_nodes` (S3.32) and in `tests/node/test_dial.py` (S3.4, S3.20, S3.21).
"""

from collections.abc import Callable
from typing import Any

from antiphon.coordination.fences import Fence
from antiphon.errors import UnavailableError
from antiphon.model.cluster import CommandDone, LiveSet
from antiphon.model.metadata import ShardMeta, ShardStatus
from antiphon.model.requests import AlterTopic, CreateTopic, ElectLeader
from antiphon.replication.messages import AddFollower, BecomeLeader, BecomeLeaderReply, NewTerm
from antiphon.replication.replica_state import Role
from tests.coordination.models import ModelReplica
from tests.coordination.world import World

Status = ShardStatus


def started(nodes: int = 3, *, shards: int = 1, config: dict[str, str] | None = None, seed: int = 1) -> World:
    """A cluster with a topic `t` of the profile `fluvio`, three replicas a shard, all live."""
    world = World(nodes, seed, model=True)
    world.start()
    answer = world.ask(CreateTopic("t", shards=shards, replicas=3, profile="fluvio", config=config or {}))
    assert isinstance(answer, CommandDone), answer
    assert world.run(2_000, world.all_online)
    return world


def meta_of(world: World, shard: int | None = None) -> ShardMeta:
    return world.state.shards[shard or max(world.state.shards)].meta


def led_anew(world: World, old: ShardMeta) -> bool:
    """Has a leader of a later term answered?"""
    return meta_of(world).term > old.term and meta_of(world).status is Status.ONLINE


def others(meta: ShardMeta) -> list[int]:
    return [node for node in meta.ensemble if node != meta.leader]


def replica(world: World, node: int, shard: int | None = None) -> ModelReplica:
    found = world.nodes[node].replicas[shard or max(world.state.shards)]
    assert isinstance(found, ModelReplica)
    return found


def fall_behind(world: World, node: int, text: str = "missed") -> None:
    """The leader writes what `node` does not get, and has it taken out of the live set (S3.28)."""
    leader = meta_of(world).leader
    world.cut_link(leader, node)
    assert world.write(max(world.state.shards), text)
    assert world.run(3_000, lambda: node not in meta_of(world).live and committed(world, text))


def committed(world: World, text: str) -> bool:
    leader = replica(world, meta_of(world).leader)
    return any(e.data == text and e.next_offset <= leader.high_watermark for e in leader.log)


def deaf(world: World, is_deaf: Callable[[int, Any], bool]) -> None:
    """Messages for which `is_deaf(to, message)` do not arrive."""
    original = world._to_replica

    def to_replica(sender: int, to: int, message: Any) -> None:
        if not is_deaf(to, message):
            original(sender, to, message)

    world._to_replica = to_replica  # type: ignore[method-assign]


def check_one_leader_each(world: World) -> None:
    """Each shard is led by the node in the metadata, and nobody else leads in that term."""
    for shard, record in world.state.shards.items():
        meta = record.meta
        hosts = [n for n in world.nodes if shard in world.nodes[n].replicas]
        leading = [
            n
            for n in hosts
            if replica(world, n, shard).leading and replica(world, n, shard).term == meta.term
        ]
        assert leading == [meta.leader]
        assert meta.leader in meta.ensemble


def test_s3_01_each_replica_set_has_one_active_leader() -> None:
    """When the sets are made, when a node is lost, and when it is back."""
    world = started(5, shards=12)
    check_one_leader_each(world)
    led = [shard for shard, record in world.state.shards.items() if record.meta.leader == 0]
    assert led
    world.crash_node(0)
    assert world.run(3_000, world.all_online)
    check_one_leader_each(world)
    world.start_node(0)
    assert world.run(3_000, world.all_online)
    check_one_leader_each(world)


def test_s3_02_a_node_hosts_many_leaders_and_followers_at_once() -> None:
    world = started(3, shards=12)
    for node in world.nodes.values():
        leading = [r for r in node.replicas.values() if r.leading is not None]
        assert 3 <= len(leading) < len(node.replicas)


def test_s3_06_every_shard_has_its_live_replica_set_in_the_metadata() -> None:
    world = started(shards=3)
    for shard in world.state.topic_with_shards("t").shards:
        assert (sorted(shard.live), shard.fence) == (sorted(shard.ensemble), Fence.LIVE)
        assert shard.live_version > 0
    meta = meta_of(world)
    away, _ = others(meta)
    world.cut_link(meta.leader, away)
    assert world.write(meta.shard_id, "not everywhere")
    world.run(3_000)
    smaller = meta_of(world)
    assert sorted(smaller.live) == sorted(node for node in meta.ensemble if node != away)
    assert smaller.live_version > meta.live_version
    world.heal_links()
    world.run(3_000)
    assert sorted(meta_of(world).live) == sorted(meta.ensemble)


def test_s3_07_a_lost_node_starts_elections_in_the_sets_that_it_led_and_leaves_the_others_alone() -> None:
    world = started(5, shards=20)
    before = {shard: record.meta for shard, record in world.state.shards.items()}
    world.crash_node(0)
    world.run(1)
    decided = world.coordinator
    assert decided is not None
    for shard, meta in before.items():
        now = decided.model.shards[shard].meta
        assert (now.term > meta.term) == (meta.leader == 0)
        if 0 in meta.ensemble and meta.leader != 0:
            assert (now.leader, 0 in now.live) == (meta.leader, False), "it is only no longer live"


def test_s3_08_to_s3_14_an_election_goes_through_its_statuses_in_order() -> None:
    world = started()
    shard = max(world.state.shards)
    old = meta_of(world)
    seen: list[tuple[Status, int]] = []

    def watch() -> bool:
        meta = meta_of(world)
        if not seen or seen[-1] != (meta.status, meta.leader):
            seen.append((meta.status, meta.leader))
        return meta.status is Status.ONLINE and meta.term > old.term

    world.spoken.clear()
    world.crash_node(old.leader)
    assert world.run(2_000, watch)
    new = meta_of(world)
    assert seen == [
        (Status.ONLINE, old.leader),
        (Status.ELECTION, -1),  # S3.8
        (Status.CANDIDATE_FOUND, -1),  # S3.10
        (Status.ONLINE, new.leader),  # S3.14
    ]
    assert sorted(new.live) == sorted(others(old)), "the live set is updated (S3.14)"
    assert new.live_version > old.live_version
    said = [message for _, message in world.spoken if message.shard == shard]
    assert sorted(said[2].live) == sorted(others(old)), "the term begins with those that are left"
    told = [(to, type(message)) for to, message in world.spoken if message.shard == shard]
    assert sorted(told[:2], key=str) == sorted(((node, NewTerm) for node in others(old)), key=str)
    assert told[2:] == [(new.leader, BecomeLeader)]


def test_s3_09_the_candidate_is_the_live_replica_with_the_smallest_lag() -> None:
    world = started()
    old = meta_of(world)
    near, far = others(old)
    deaf(world, lambda to, message: to == far and type(message).__name__ == "Append")
    assert world.write(old.shard_id, "not everywhere")
    world.run(100)
    assert sorted(meta_of(world).live) == sorted(old.ensemble), "both are live still"
    world.crash_node(old.leader)
    assert world.run(2_000, lambda: led_anew(world, old))
    assert asked_to_lead(world, old.shard_id)[1:] == [near], "and nobody was asked before it"


def asked_to_lead(world: World, shard: int) -> list[int]:
    """Who was told to lead, in order."""
    return [to for to, m in world.spoken if isinstance(m, BecomeLeader) and m.shard == shard]


def test_s3_09_who_is_not_live_is_no_candidate_however_long_its_log() -> None:
    world = started()
    old = meta_of(world)
    live, out = others(old)
    fall_behind(world, out)
    deaf(world, lambda to, message: to == live and type(message).__name__ == "Append")
    world.heal_links()
    assert world.write(old.shard_id, "only who is not live gets this")
    assert world.run(1_000, lambda: len(replica(world, out).log) > len(replica(world, live).log))
    assert out not in meta_of(world).live
    asked: list[int] = []

    def late(to: int, message: Any) -> bool:
        is_asked = to == live and message.shard == old.shard_id and isinstance(message, NewTerm)
        if is_asked:
            asked.append(to)
        return is_asked and len(asked) == 1

    deaf(world, late)  # the first promise is that of the longer log
    world.crash_node(old.leader)
    world.run(2_000)
    assert set(asked_to_lead(world, old.shard_id)[1:]) == {live}


def test_s3_10_the_candidate_has_so_long_to_answer_and_then_the_next_is_asked() -> None:
    """S3.10 and S3.15: the timer, the next candidate from the live set, and who failed is not asked again."""
    world = started()
    old = meta_of(world)
    asked: list[int] = []

    def refuse(to: int, message: Any) -> bool:
        if isinstance(message, BecomeLeader) and message.shard == old.shard_id:
            asked.append(to)
            return len(asked) <= 2
        return False

    deaf(world, refuse)
    began_ms = world.now_ms
    answer = world.ask(ElectLeader(old.shard_id), within_ms=20_000)
    assert isinstance(answer, CommandDone)
    assert sorted(asked) == sorted(old.ensemble), "three candidates, each asked once"
    assert world.now_ms - began_ms > 1_500 + 3_000, "each had its time, the second a longer one"
    assert meta_of(world).leader == asked[-1]


def test_s3_11_with_nobody_live_the_set_is_offline_and_remembers_who_was() -> None:
    world = started()
    old = meta_of(world)
    live, lagging = others(old)
    fall_behind(world, lagging)
    world.crash_node(live)
    assert world.run(1_000, lambda: meta_of(world).live == (old.leader,))
    world.crash_node(old.leader)
    world.run(1_000)
    assert (meta_of(world).status, meta_of(world).leader) == (Status.OFFLINE, -1)
    assert meta_of(world).live == (old.leader,)
    refused = world.ask(ElectLeader(old.shard_id, lagging))
    assert isinstance(refused, UnavailableError)
    assert "may lack committed entries" in refused.message


def test_s3_12_success_is_reported_and_failure_is_silence() -> None:
    world = started(config={"min.live": "2"})
    old = meta_of(world)
    said: list[tuple[int, Any]] = []
    original = world._to_coordinator

    def to_coordinator(sender: int, message: Any) -> None:
        if message.shard == old.shard_id:
            said.append((sender, message))
        original(sender, message)

    world._to_coordinator = to_coordinator  # type: ignore[method-assign]
    world.cut_link(*others(old))  # whoever is promoted cannot commit its first entry
    world.crash_node(old.leader)
    world.run(1_400)
    assert meta_of(world).status is Status.CANDIDATE_FOUND
    assert not [message for _, message in said if isinstance(message, BecomeLeaderReply)]
    world.heal_links()
    assert world.run(5_000, lambda: led_anew(world, old))
    replies = [sender for sender, message in said if isinstance(message, BecomeLeaderReply)]
    assert replies == [meta_of(world).leader]


def test_s3_13_only_the_candidate_is_told_to_lead() -> None:
    world = started()
    old = meta_of(world)
    world.spoken.clear()
    world.crash_node(old.leader)
    assert world.run(2_000, lambda: led_anew(world, old))
    new = meta_of(world)
    told = [to for to, m in world.spoken if isinstance(m, BecomeLeader) and m.shard == old.shard_id]
    assert told == [new.leader]
    (follower,) = (node for node in new.live if node != new.leader)
    assert replica(world, follower).leading is None


def test_s3_15_when_all_candidates_have_failed_the_set_is_offline_until_a_pause_is_over() -> None:
    world = started()
    old = meta_of(world)
    asked: list[int] = []
    refusing = [True]

    def refuse(to: int, message: Any) -> bool:
        if isinstance(message, BecomeLeader) and message.shard == old.shard_id and refusing[0]:
            asked.append(to)
            return True
        return False

    deaf(world, refuse)
    world.crash_node(old.leader)
    answer = world.ask(ElectLeader(old.shard_id), within_ms=20_000)
    assert isinstance(answer, UnavailableError)
    assert "led by nobody" in answer.message
    assert meta_of(world).status is Status.OFFLINE
    assert sorted(asked) == sorted(others(old))
    refusing[0] = False
    assert world.run(20_000, lambda: led_anew(world, old))


def test_s3_16_followers_follow_the_new_leader_and_synchronise_with_it() -> None:
    world = started()
    old = meta_of(world)
    near, far = others(old)
    deaf(
        world,
        lambda to, message: to == far and message.term == old.term and type(message).__name__ == "Append",
    )
    assert world.write(old.shard_id, "not everywhere")
    world.run(60)
    world.crash_node(old.leader)
    assert world.run(2_000, lambda: led_anew(world, old))
    assert world.write(old.shard_id, "after")
    assert world.run(2_000, lambda: committed(world, "after"))
    assert replica(world, far).log == replica(world, near).log
    assert "not everywhere" in [entry.data for entry in replica(world, far).log]


def test_s3_17_a_node_that_is_back_is_brought_up_to_date_in_its_sets() -> None:
    world = started(5, shards=20)
    away = 0
    world.crash_node(away)
    assert world.run(2_000, world.all_online)
    led = {s: r.meta.leader for s, r in world.state.shards.items() if away in r.meta.ensemble}
    for shard in led:
        assert world.write(shard, "while away")
    world.run(200)
    world.spoken.clear()
    world.start_node(away)
    assert world.run(3_000, world.all_online), "and live again, in every set"
    assert {m.shard for to, m in world.spoken if isinstance(m, NewTerm) and to == away} == set(led)
    assert {m.shard for to, m in world.spoken if isinstance(m, AddFollower) and m.node == away} == set(led)
    for shard in led:
        assert "while away" in [entry.data for entry in replica(world, away, shard).log]


def unclean_case(world: World) -> tuple[int, int]:
    """Everybody is gone who has everything; returns who of the others has more, and who has less."""
    old = meta_of(world)
    more, less = others(old)
    fall_behind(world, less, "first")
    fall_behind(world, more, "second")
    assert meta_of(world).live == (old.leader,)
    world.crash_node(old.leader)
    world.heal_links()
    return more, less


def test_s3_18_an_offline_set_waits_for_a_live_member_unless_unclean_elections_are_allowed() -> None:
    world = started(config={"unclean.leader.election.enable": "true"})
    more, _ = unclean_case(world)
    assert world.run(1_000, lambda: meta_of(world).status is Status.OFFLINE)
    assert world.run(10_000, lambda: meta_of(world).status is Status.ONLINE)
    assert meta_of(world).leader == more, "of the membership, the one with the smallest lag"
    assert [(event.shard_id, event.leader) for event in world.unclean] == [(meta_of(world).shard_id, more)]


def test_s3_18_is_never_done_by_default() -> None:
    world = started()
    old_leader = meta_of(world).leader
    unclean_case(world)
    world.run(60_000)
    assert meta_of(world).status is Status.OFFLINE
    world.start_node(old_leader)
    assert world.run(5_000, world.all_online)
    assert committed(world, "second")
    assert world.unclean == []


def test_s3_18_may_be_allowed_when_it_is_needed() -> None:
    world = started()
    more, _ = unclean_case(world)
    world.run(1_000)
    allowed = AlterTopic("t", config={"unclean.leader.election.enable": "true"})
    assert isinstance(world.ask(allowed), CommandDone)
    assert world.run(10_000, lambda: meta_of(world).status is Status.ONLINE)
    assert meta_of(world).leader == more


def test_s3_18_waits_a_little_for_who_has_everything() -> None:
    world = started(config={"unclean.leader.election.enable": "true"})
    old_leader = meta_of(world).leader
    unclean_case(world)
    world.run(1_000)
    world.start_node(old_leader)
    assert world.run(5_000, world.all_online)
    assert world.unclean == []
    assert committed(world, "second")


def test_s3_19_an_unclean_election_takes_the_same_steps() -> None:
    world = started(config={"unclean.leader.election.enable": "true"})
    unclean_case(world)
    assert world.run(1_000, lambda: meta_of(world).status is Status.OFFLINE)
    seen = [Status.OFFLINE]

    def watch() -> bool:
        if meta_of(world).status is not seen[-1]:
            seen.append(meta_of(world).status)
        return meta_of(world).status is Status.ONLINE

    assert world.run(10_000, watch)
    assert seen == [Status.OFFLINE, Status.ELECTION, Status.CANDIDATE_FOUND, Status.ONLINE]


def test_s3_30_a_follower_takes_over_and_the_others_synchronise_with_it() -> None:
    world = started()
    old = meta_of(world)
    for text in ("a", "b", "c"):
        assert world.write(old.shard_id, text)
    assert world.run(1_000, lambda: committed(world, "c"))
    world.crash_node(old.leader)
    assert world.run(2_000, lambda: led_anew(world, old))
    new = meta_of(world)
    assert new.leader in others(old)
    assert world.write(old.shard_id, "d")
    assert world.run(1_000, lambda: committed(world, "d"))
    logs = [[e.data for e in replica(world, node).log] for node in new.live]
    assert logs[0] == logs[1]
    assert [text for text in logs[0] if text in ("a", "b", "c", "d")] == ["a", "b", "c", "d"]


def test_s3_31_a_failed_leader_that_comes_back_follows() -> None:
    world = started()
    old = meta_of(world)
    world.crash_node(old.leader)
    assert world.run(2_000, lambda: led_anew(world, old))
    new = meta_of(world)
    world.start_node(old.leader)
    assert world.run(3_000, world.all_online)
    world.run(30_000)
    assert (meta_of(world).leader, meta_of(world).term) == (new.leader, new.term), "no automatic fail-back"
    assert replica(world, old.leader).is_follower


def test_the_live_set_is_changed_by_compare_and_set() -> None:
    """The gap that the document leaves: a shrink counts when it is recorded, and only on top of what it was made from."""
    world = started()
    meta = meta_of(world)
    one, two = others(meta)
    coordinator = world.coordinator
    assert coordinator is not None

    def propose(live: tuple[int, ...], version: int) -> ShardMeta:
        report = LiveSet(meta.shard_id, meta.term, live, (), version)
        world.act(coordinator.live_sets(meta.leader, (report,), world.now_ms))
        return coordinator.model.shards[meta.shard_id].meta

    deaf(
        world, lambda _to, message: type(message).__name__ == "Append"
    )  # the leader itself has nothing to say
    assert propose((meta.leader, one), meta.live_version - 1).live == meta.live, "made from an older set"
    assert propose((meta.leader, one), meta.live_version + 1).live == meta.live, "or from one that never was"
    taken = propose((meta.leader, one), meta.live_version)
    assert (set(taken.live), taken.live_version) == ({meta.leader, one}, meta.live_version + 1)
    again = propose((meta.leader, one), meta.live_version)
    assert again == taken, "a repeat is no second change"
    assert propose((meta.leader, one, two), meta.live_version).live == taken.live, "nor is what came late"
    world.crash_node(two)
    with_dead = propose((meta.leader, one, two), taken.live_version)
    assert set(with_dead.live) == {meta.leader, one}, "nobody dead is let in"
    assert with_dead.live_version == taken.live_version + 1, "but the leader gets its answer"


def test_who_is_still_a_learner_with_the_leader_is_not_live_however_well_it_keeps_up() -> None:
    world = started()
    meta = meta_of(world)
    one, two = others(meta)
    coordinator = world.coordinator
    assert coordinator is not None
    deaf(world, lambda _to, message: type(message).__name__ == "Append")
    report = LiveSet(meta.shard_id, meta.term, meta.ensemble, (), meta.live_version, learners=(two,))
    world.act(coordinator.live_sets(meta.leader, (report,), world.now_ms))
    assert set(coordinator.model.shards[meta.shard_id].meta.live) == {meta.leader, one}


def test_the_coordinator_itself_only_shrinks_the_live_set() -> None:
    world = started()
    meta = meta_of(world)
    gone, _ = others(meta)
    world.crash_node(gone)
    world.run(20)
    assert gone not in meta_of(world).live
    world.cut_link(meta.leader, gone)
    world.start_node(gone)
    world.run(2_000)
    assert gone not in meta_of(world).live, "being alive is not enough: the leader has to say so"
    world.heal_links()
    assert world.run(3_000, world.all_online)


def test_a_new_coordinator_takes_out_who_was_lost_meanwhile() -> None:
    world = started()
    meta = meta_of(world)
    gone, _ = others(meta)
    deaf(world, lambda _to, message: type(message).__name__ == "Append")
    replica(world, meta.leader).tick = list  # type: ignore[method-assign]
    world.crash_coordinator()
    world.crash_node(gone)
    world.start_coordinator(lost=(gone,))
    world.run(20)
    assert gone not in meta_of(world).live
    assert meta_of(world).live_version == meta.live_version + 1
    assert (meta_of(world).leader, meta_of(world).term) == (meta.leader, meta.term)


def test_a_live_member_that_restarts_stays_electable() -> None:
    world = started()
    old = meta_of(world)
    one, two = others(old)
    world.crash_node(one, noticed=False)
    world.start_node(one)
    world.run(300)
    assert set(meta_of(world).live) == set(old.ensemble)
    world.crash_node(two)
    world.crash_node(old.leader)
    assert world.run(3_000, lambda: led_anew(world, old))
    assert meta_of(world).leader == one


def test_a_live_member_with_another_disk_or_a_damaged_log_is_none() -> None:
    for damage in (False, True):
        world = started()
        old = meta_of(world)
        one, two = others(old)
        world.cut_link(one, two)
        fall_behind(world, two)
        world.crash_node(old.leader)
        world.run(5)
        world.crash_node(one)
        world.run(300)
        assert one in meta_of(world).live
        if damage:
            world.damage(one)
        world.start_node(one, new_disk=not damage)
        world.run(3_000)
        assert meta_of(world).status is Status.OFFLINE
        assert meta_of(world).live == tuple(node for node in meta_of(world).live if node != one)
        world.heal_links()
        world.start_node(old.leader)
        if old.leader in meta_of(world).live:
            assert world.run(8_000, world.all_online)
            assert committed(world, "missed")


def test_min_live_is_waited_for_by_a_leader_that_is_not_ready() -> None:
    world = started(config={"min.live": "2"})
    old = meta_of(world)
    one, two = others(old)
    world.cut_link(one, two)
    fall_behind(world, two)
    world.crash_node(old.leader)
    world.run(1_000)
    assert meta_of(world).live == (one,)
    assert meta_of(world).status is Status.CANDIDATE_FOUND, (
        "one live replica is less than this topic commits with"
    )
    world.heal_links()
    assert world.run(10_000, lambda: led_anew(world, old))
    assert set(meta_of(world).live) == {one, two}


def test_roles_of_the_documents_are_those_of_the_protocol() -> None:
    """S3.12's promotion, S3.13's ignoring and S3.31's return are the four roles of S0.4 and no others."""
    assert {role.name for role in Role} == {"NOT_MEMBER", "FENCED", "FOLLOWER", "LEADER"}
