"""A consumer group of the classic protocol, as a pure state machine: no clock, socket or randomness of its own.

A group goes round: members join (PreparingRebalance), the coordinator forms a generation and tells the member that leads it
who is in, the leader hands in the assignments (CompletingRebalance), everybody works (Stable) until somebody joins, leaves
or falls silent. Answers to JoinGroup and SyncGroup wait for others; each is named by a token that its request brought, and
comes out through `take_answers` when it is due. Times are integer milliseconds of one clock that never goes back.

What a successor needs is kept in one row: `take_row` gives it whenever it changes, which is once a rebalance. Whoever waits
for what it says is answered when it is `stored`. The next coordinator makes the group from its last row (`restored`), with
sessions that begin anew. A rebalance that was under way is forgotten with the coordinator, and its members join again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.invariants import invariant
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.classic_row import ClassicRow, kept_of, members_of
from antiphon.kafka.groups.members import GroupMembers
from antiphon.kafka.groups.row_writes import RowWrites
from antiphon.kafka.groups.types import (
    DEFAULT_GROUP_CONFIG,
    MEMBER_BYTES,
    TRANSITIONS,
    GroupAnswer,
    GroupConfig,
    GroupState,
    Join,
    Joined,
    Member,
    Sync,
    Synced,
    Token,
    ids_bytes,
)


@dataclass(slots=True)
class ClassicGroup:
    """One group. Every method takes the time, may produce answers, and leaves a state that `deadline_ms` describes."""

    group_id: str
    config: GroupConfig = DEFAULT_GROUP_CONFIG
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    changed_ms: int = (
        0  # the wall clock's time when the group, as its row says it, came to be stable or empty
    )
    _members: GroupMembers = field(default_factory=GroupMembers)
    _join_deadline_ms: int = 0
    _sync_deadline_ms: int = 0
    _in_initial_delay: bool = False  # the first member waits for company, whoever has joined
    _round_began_ms: int = 0
    _worked: int = -1  # the last generation that came to be stable
    _answers: list[GroupAnswer] = field(default_factory=list)
    writes: RowWrites = field(default_factory=RowWrites)

    @classmethod
    def restored(cls, group_id: str, config: GroupConfig, now_ms: int, row: ClassicRow) -> "ClassicGroup":
        """The group as its last coordinator left it. All sessions begin now."""
        group = cls(
            group_id,
            config,
            generation=row.generation,
            protocol_type=row.protocol_type,
            changed_ms=row.changed_ms,
        )
        if row.members:
            group.state, group.protocol_name, group.leader = GroupState.STABLE, row.protocol_name, row.leader
            group._worked = row.generation
            for member in members_of(row, now_ms):
                group._members.add(member)
            if row.rejoins:
                group._prepare_rebalance(now_ms)
        return group

    @property
    def members(self) -> dict[str, Member]:
        """Members by id, in the order in which they came."""
        return self._members.by_id

    # -- what comes out -------------------------------------------------------------------------------------------

    def take_answers(self) -> list[GroupAnswer]:
        """Answers that are due; each is given once."""
        answers, self._answers = self._answers, []
        return answers

    @property
    def is_unused(self) -> bool:
        """Nobody is in the group or about to join it."""
        return self._members.count == 0

    @property
    def empty_since_ms(self) -> int | None:
        """By the wall clock, since when the group has no members; None where it has some, or that was never kept."""
        is_kept = self.state is GroupState.EMPTY and not self.writes.is_due
        return self.changed_ms or None if is_kept else None

    def deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest, if nothing else happens."""
        times = [m.expires_ms for m in self.members.values() if not m.is_waiting]
        times.extend(self._members.pending.values())
        if self.state is GroupState.PREPARING:
            times.append(self._join_deadline_ms)
        elif any(m.owes_sync for m in self.members.values()):
            times.append(self._sync_deadline_ms)
        return min(times, default=None)

    # -- requests -------------------------------------------------------------------------------------------------

    def join(self, now_ms: int, request: Join, token: Token) -> None:
        """JoinGroup; answered when the generation is formed, or at once with an error."""
        error = self._members.refuse_join(self.config, self.protocol_type, request)
        if error:
            self._answer_join(token, Joined(error, request.member_id))
        elif not request.member_id:
            self._join_unknown(now_ms, request, token)
        elif request.instance_id is None and request.member_id in self._members.pending:
            del self._members.pending[request.member_id]
            self._add(now_ms, request, request.member_id, token)
        else:
            self._join_known(now_ms, request, token)

    def sync(self, now_ms: int, request: Sync, token: Token) -> None:
        """SyncGroup; answered when the leader has handed in the assignments."""
        error = self._refuse(request.member_id, request.instance_id, request.generation)
        if not error and not self._same_protocol(request.protocol_type, request.protocol_name):
            error = code.INCONSISTENT_GROUP_PROTOCOL
        if not error and self.state is GroupState.PREPARING:
            error = code.REBALANCE_IN_PROGRESS
        if not error and sum(len(data) for _, data in request.assignments) > self.config.assignment_bytes_max:
            error = code.INVALID_REQUEST
        if error:
            self._answers.append(GroupAnswer(token, Synced(error)))
            return
        member = self.members[request.member_id]
        member.expires_ms = now_ms + member.session_ms
        member.owes_sync = False
        if self.state is GroupState.STABLE:
            self._answer_sync(member, token)
            return
        self._release_sync(now_ms, member, code.REBALANCE_IN_PROGRESS)
        member.sync_token = token
        if request.member_id == self.leader and not self.writes.is_assigned:
            self._assign(dict(request.assignments))

    def heartbeat(self, now_ms: int, member_id: str, instance_id: str | None, generation: int) -> int:
        """Heartbeat; the error code, REBALANCE_IN_PROGRESS to call the member to a rebalance."""
        error = self._refuse(member_id, instance_id, generation)
        if error:
            return error
        member = self.members[member_id]
        member.expires_ms = now_ms + member.session_ms
        return code.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else code.NONE

    def leave(self, now_ms: int, member_id: str, instance_id: str | None) -> int:
        """LeaveGroup of one member, by its id or, where that is empty, its instance id; the error code."""
        if member_id in self._members.pending:
            del self._members.pending[member_id]
            self._complete_if_all_joined(now_ms)
            return code.NONE
        if instance_id is not None:
            known = self._members.id_of(instance_id)
            if known is None:
                return code.UNKNOWN_MEMBER_ID
            if member_id and member_id != known:
                return code.FENCED_INSTANCE_ID
            member_id = known
        if member_id not in self.members:
            return code.UNKNOWN_MEMBER_ID
        self._remove(now_ms, [self.members[member_id]])
        return code.NONE

    def check_commit(self, now_ms: int, member_id: str, instance_id: str | None, generation: int) -> int:
        """May this member commit offsets? A generation below 0 comes from outside the group: only while it is empty."""
        if generation < 0 and not self.members:
            return code.NONE
        error = self._refuse(member_id, instance_id, generation)
        if error:
            return error
        if generation != self._worked:  # it may be formed anew by a successor, which does not know it
            return code.REBALANCE_IN_PROGRESS
        member = self.members[member_id]
        member.expires_ms = now_ms + member.session_ms
        return code.NONE

    def tick(self, now_ms: int) -> None:
        """Time passed: drop the silent, end a round whose time is up."""
        self._members.expire_pending(now_ms)
        silent = self._members.expired(now_ms)
        if self.state is not GroupState.PREPARING and now_ms >= self._sync_deadline_ms:
            silent.extend(m for m in self.members.values() if m.owes_sync and m not in silent)
        if silent:
            self._remove(now_ms, silent)
        if self.state is not GroupState.PREPARING:
            return
        if now_ms >= self._join_deadline_ms:
            self._in_initial_delay = False
            self._next_generation(now_ms)
        else:
            self._complete_if_all_joined(now_ms)

    def abandoned(self, now_ms: int, token: Token) -> None:
        """The connection of a waiting member ended: it is forgotten soon, unless it comes again."""
        for member in self.members.values():
            if member.join_token is token or member.sync_token is token:
                member.join_token = None if member.join_token is token else member.join_token
                member.sync_token = None if member.sync_token is token else member.sync_token
                member.expires_ms = now_ms + min(member.session_ms, self.config.abandoned_ms)

    # -- what is kept ---------------------------------------------------------------------------------------------

    def take_row(self, wall_ms: int) -> ClassicRow | None:
        """The row, where it has to be written; then say `stored` or `not_stored` before asking again."""
        if not self.writes.may_begin:
            return None
        self.writes.begin(self.generation)
        if self.state is not GroupState.STABLE:
            self.changed_ms = wall_ms
        members = kept_of(self.members.values())
        return ClassicRow(
            self.generation, self.protocol_type, self.protocol_name, self.leader, self.changed_ms, members
        )

    def stored(self, now_ms: int) -> None:
        """The row is written: the generation works, unless the group went on from it meanwhile."""
        is_current, held = self.writes.end(self.generation, is_over=self.state is GroupState.PREPARING)
        for member, token, joined in held:
            member.join_token = None
            member.expires_ms = now_ms + member.session_ms
            self._answer_join(token, joined)
        if is_current and self.state is GroupState.COMPLETING:
            self._work(now_ms)

    def not_stored(self, now_ms: int, error_code: int) -> None:
        """Nobody knows whether the row is written. Whoever waits for it is told so; a generation in doubt is not used."""
        is_current, held = self.writes.end(self.generation, is_over=self.state is GroupState.PREPARING)
        for member, _, _ in held:
            member.expires_ms = now_ms + member.session_ms
            self._release_join(member, error_code)
        if is_current and self.state is GroupState.COMPLETING:
            for member in self.members.values():
                member.assignment = b""
                self._release_sync(now_ms, member, error_code)
            self._prepare_rebalance(now_ms)
        elif is_current and self.state is GroupState.EMPTY:
            self.writes.is_due = True

    @property
    def kept_of(self) -> dict[str, int]:
        """Bytes of each member, and of the id of each one who has yet to join."""
        pending = {member_id: MEMBER_BYTES + ids_bytes(member_id) for member_id in self._members.pending}
        return pending | {member_id: member.kept_bytes for member_id, member in self.members.items()}

    def unload(self, error_code: int) -> None:
        """Answer everybody who waits with an error: this node coordinates the group no longer."""
        for member in self.members.values():
            if member.join_token is not None:
                self._answer_join(member.join_token, Joined(error_code, member.member_id))
            if member.sync_token is not None:
                self._answers.append(GroupAnswer(member.sync_token, Synced(error_code)))
            member.join_token = member.sync_token = None

    # -- joining --------------------------------------------------------------------------------------------------

    def _join_unknown(self, now_ms: int, request: Join, token: Token) -> None:
        new_id = request.new_member_id
        old_id = self._members.id_of(request.instance_id)
        if old_id is not None:
            self._replace_static(now_ms, self.members[old_id], request, token)
        elif request.instance_id is None and request.id_first:
            self._members.pending[new_id] = now_ms + request.session_ms
            self._answer_join(token, Joined(code.MEMBER_ID_REQUIRED, new_id))
        else:
            self._add(now_ms, request, new_id, token)

    def _join_known(self, now_ms: int, request: Join, token: Token) -> None:
        error = self._refuse(request.member_id, request.instance_id, self.generation)
        if error:
            self._answer_join(token, Joined(error, request.member_id))
            return
        member = self.members[request.member_id]
        unchanged = member.protocols == request.protocols
        stays = unchanged and (
            self.state is GroupState.COMPLETING
            or (self.state is GroupState.STABLE and member.member_id != self.leader)
        )
        if stays:  # a lost answer was asked for again
            member.expires_ms = now_ms + member.session_ms
            self._answer_join(token, self._joined(member))
            return
        self._update(member, request)
        self._wait_to_join(now_ms, member, token)

    def _add(self, now_ms: int, request: Join, member_id: str, token: Token) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_ms,
            request.rebalance_ms,
            request.protocols,
            now_ms + request.session_ms,
        )
        self._members.add(member)
        self.protocol_type = request.protocol_type
        self._wait_to_join(now_ms, member, token)

    def _replace_static(self, now_ms: int, old: Member, request: Join, token: Token) -> None:
        """A static member came back under a new id. The old id is fenced; a stable group need not rebalance for it."""
        self._release_join(old, code.FENCED_INSTANCE_ID)
        self._release_sync(now_ms, old, code.FENCED_INSTANCE_ID)
        unchanged = old.protocols == request.protocols
        old_id = old.member_id
        self._members.rename(old, request.new_member_id)
        self._update(old, request)
        old.expires_ms = now_ms + request.session_ms
        was_leader = self.leader == old_id
        if was_leader:
            self.leader = old.member_id
        if self.state is not GroupState.STABLE or not unchanged:
            self._wait_to_join(now_ms, old, token)
            return
        joined = self._joined(old)
        if request.can_skip_assignment:
            joined = joined._replace(skip_assignment=was_leader)
        elif was_leader:
            # It must not compute assignments that nobody waits for: to it, somebody else leads.
            joined = joined._replace(leader=old_id, members=())
        self.writes.hold(old, token, joined)

    def _update(self, member: Member, request: Join) -> None:
        member.client_id, member.client_host = request.client_id, request.client_host
        member.session_ms, member.rebalance_ms = request.session_ms, request.rebalance_ms
        member.protocols = request.protocols

    def _wait_to_join(self, now_ms: int, member: Member, token: Token) -> None:
        self._release_join(member, code.REBALANCE_IN_PROGRESS)
        self._prepare_rebalance(now_ms)
        member.join_token = token
        if self._in_initial_delay:
            latest = self._round_began_ms + self._rebalance_ms()
            self._join_deadline_ms = min(now_ms + self.config.initial_delay_ms, latest)
        self._complete_if_all_joined(now_ms)

    # -- rounds ---------------------------------------------------------------------------------------------------

    def _transition_to(self, state: GroupState) -> None:
        invariant((self.state, state) in TRANSITIONS, f"group {self.group_id}: {self.state} -> {state}")
        self.state = state

    def _rebalance_ms(self) -> int:
        return min(max(self._members.rebalance_ms(), 0), self.config.rebalance_ms_max)

    def _prepare_rebalance(self, now_ms: int) -> None:
        """Begin a rebalance, unless one has begun."""
        if self.state is GroupState.PREPARING:
            return
        for member in self.members.values():
            self._release_sync(now_ms, member, code.REBALANCE_IN_PROGRESS)
            member.owes_sync = False
        self.writes.forget()
        self._in_initial_delay = self.state is GroupState.EMPTY
        self._round_began_ms = now_ms
        self._join_deadline_ms = now_ms + self._rebalance_ms()
        self._transition_to(GroupState.PREPARING)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING or self._in_initial_delay or self._members.pending:
            return
        if all(m.join_token is not None for m in self.members.values()):
            self._next_generation(now_ms)

    def _next_generation(self, now_ms: int) -> None:
        """Everybody who matters has joined: choose a protocol and a leader, and tell them."""
        gone = [m for m in self.members.values() if m.join_token is None and m.instance_id is None]
        for member in gone:
            self._forget(member)
        waiting = [m for m in self.members.values() if m.join_token is not None]
        if (
            self.members and not waiting
        ):  # only silent static members: they may come back until their session ends
            self._join_deadline_ms = now_ms + max(self._rebalance_ms(), 1)
            return
        self.generation += 1
        if not self.members:
            self.protocol_name = self.leader = None
            self.writes.is_due = True
            self._transition_to(GroupState.EMPTY)
            return
        self.protocol_name = self._members.choose_protocol()
        leader = self.members.get(self.leader or "")
        if leader is None or leader.join_token is None:
            self.leader = waiting[0].member_id
        self._sync_deadline_ms = now_ms + max(self._rebalance_ms(), 1)
        self._transition_to(GroupState.COMPLETING)
        for member in waiting:
            token, member.join_token = member.join_token, None
            member.owes_sync, member.assignment = True, b""
            member.expires_ms = now_ms + member.session_ms
            self._answer_join(token, self._joined(member))

    def _joined(self, member: Member) -> Joined:
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                (m.member_id, m.instance_id, m.metadata(self.protocol_name)) for m in self.members.values()
            )
        return Joined(
            code.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader or "",
            skip_assignment=False,
            members=members,
        )

    def _assign(self, assignments: dict[str, bytes]) -> None:
        """They are given out when they are stored: nobody works in a generation that a successor would not know."""
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.writes.is_assigned = self.writes.is_due = True

    def _work(self, now_ms: int) -> None:
        self._transition_to(GroupState.STABLE)
        self._worked = self.generation
        for member in self.members.values():
            if member.sync_token is not None:
                token, member.sync_token = member.sync_token, None
                member.expires_ms = now_ms + member.session_ms
                self._answer_sync(member, token)

    def _remove(self, now_ms: int, members: Sequence[Member]) -> None:
        for member in members:
            self._forget(member)
        if self.state in {GroupState.STABLE, GroupState.COMPLETING}:
            self._prepare_rebalance(now_ms)
        self._complete_if_all_joined(now_ms)

    def _forget(self, member: Member) -> None:
        self._release_join(member, code.UNKNOWN_MEMBER_ID)
        if member.sync_token is not None:
            self._answers.append(GroupAnswer(member.sync_token, Synced(code.UNKNOWN_MEMBER_ID)))
        self._members.remove(member)

    # -- small parts ----------------------------------------------------------------------------------------------

    def _refuse(self, member_id: str, instance_id: str | None, generation: int) -> int:
        """Is this a member of this generation?"""
        error = self._members.check(member_id, instance_id)
        if error:
            return error
        return code.NONE if generation == self.generation else code.ILLEGAL_GENERATION

    def _same_protocol(self, protocol_type: str | None, protocol_name: str | None) -> bool:
        return protocol_type in {None, self.protocol_type} and protocol_name in {None, self.protocol_name}

    def _answer_join(self, token: Token, joined: Joined) -> None:
        self._answers.append(GroupAnswer(token, joined))

    def _answer_sync(self, member: Member, token: Token) -> None:
        synced = Synced(code.NONE, self.protocol_type, self.protocol_name, member.assignment)
        self._answers.append(GroupAnswer(token, synced))

    def _release_join(self, member: Member, error_code: int) -> None:
        if member.join_token is not None:
            token, member.join_token = member.join_token, None
            self._answer_join(token, Joined(error_code, member.member_id))

    def _release_sync(self, now_ms: int, member: Member, error_code: int) -> None:
        if member.sync_token is not None:
            token, member.sync_token = member.sync_token, None
            member.expires_ms = now_ms + member.session_ms
            self._answers.append(GroupAnswer(token, Synced(error_code)))
