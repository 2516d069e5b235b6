"""A group of the consumer protocol (KIP-848), as a pure state machine: no clock, socket, disk or randomness of its own.

Members say by heartbeats what they read and what they own. The group has an epoch, which rises when any of that changes, a
target assignment, which an assignor makes for an epoch, and for each member an epoch and an assignment, which it brings to
the target step by step (`consumer_reconciliation`). Nobody waits for anybody: a heartbeat is answered at once.

All of it is rows (`take_changes`). What a step answers holds when the rows that it changed are stored; whoever holds the
group must not let an answer out before. Then a group that is made again from its rows (`restored`) goes on where it was: the
members do not notice. Only times are not stored: each session begins anew then.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from antiphon.coordination import consumer_reconciliation
from antiphon.coordination import consumer_terms as t
from antiphon.coordination.consumer_assignors import ASSIGNORS
from antiphon.coordination.consumer_terms import (
    NO_PLACES,
    Beat,
    Beaten,
    Catalog,
    GroupBounds,
    GroupRow,
    GroupState,
    Kind,
    Member,
    MemberState,
    Place,
    Places,
    Refused,
    TopicFacts,
)
from antiphon.coordination.nearness import Racks
from antiphon.invariants import invariant

HASH_BYTES = 16


@dataclass(slots=True)
class ConsumerGroup:
    """One group. `members`, `targets`, `regexes`: by member id, by member id, by expression."""

    bounds: GroupBounds = field(default_factory=GroupBounds)
    row: GroupRow = field(default_factory=GroupRow)
    members: dict[str, Member] = field(default_factory=dict)
    targets: dict[str, Places] = field(default_factory=dict)
    regexes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _static: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    _holders: dict[Place, str] = field(default_factory=dict)  # of what is assigned or being revoked
    _sessions: dict[str, int] = field(default_factory=dict)  # when they end, by member
    _revocations: dict[str, int] = field(default_factory=dict)  # until when places must be given up
    _rejoins: dict[str, int] = field(default_factory=dict)  # until when classic members must join, or sync
    _seen_version: int = -1  # of the catalog
    _changes: t.Changes = field(default_factory=dict)

    @classmethod
    def restored(
        cls, now_ms: int, bounds: GroupBounds, rows: Mapping[t.RowName, t.RowBody]
    ) -> "ConsumerGroup":
        """The group that these rows are of. A place that two rows give away goes to the first; nothing writes that."""
        group = cls(bounds)
        for (kind, name), body in sorted(rows.items()):
            if kind is Kind.GROUP and isinstance(body, GroupRow):
                group.row = body
            elif kind is Kind.MEMBER and isinstance(body, Member):
                group._keep(now_ms, body)
            elif kind is Kind.TARGET and isinstance(body, frozenset):
                group.targets[name] = body
            elif kind is Kind.REGEX and isinstance(body, tuple):
                group.regexes[name] = body
        newest = max((member.epoch for member in group.members.values()), default=0)
        if group.row.epoch < newest:  # its own row is lost: begin above what members know
            group.row = GroupRow(epoch=newest + 1, target_epoch=newest)
        return group

    def _keep(self, now_ms: int, member: Member) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        for place in member.held:
            self._holders.setdefault(place, member.member_id)
        self._time(now_ms, member)

    def bind(self, bounds: GroupBounds) -> None:
        """These bounds hold from now on. Where sessions become longer, those that have begun do as well: members who are
        told to come less often, too, must not be gone before they do.
        """
        longer_ms = bounds.session_timeout_ms - self.bounds.session_timeout_ms
        self.bounds = bounds
        for member_id in self._sessions if longer_ms > 0 else ():
            if self.members[member_id].classic is None:
                self._sessions[member_id] += longer_ms

    # -- what comes out -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The group's epoch."""
        return self.row.epoch

    @property
    def state(self) -> GroupState:
        """As tools show it."""
        if not self.members:
            return GroupState.EMPTY
        if self.row.epoch > self.row.target_epoch:
            return GroupState.ASSIGNING
        settled = all(
            m.state is MemberState.STABLE and m.epoch == self.row.target_epoch for m in self.members.values()
        )
        return GroupState.STABLE if settled else GroupState.RECONCILING

    @property
    def subscribed(self) -> frozenset[str]:
        """Names of the topics that any member reads."""
        return frozenset(name for member in self.members.values() for name in self._reads(member))

    def take_changes(self) -> t.Changes:
        """Rows to be written, as they are now; each change is given once."""
        changes, self._changes = self._changes, {}
        return changes

    def deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest, if nothing else happens."""
        timers = (self._sessions, self._revocations, self._rejoins)
        return min((ends_ms for ends in timers for ends_ms in ends.values()), default=None)

    # -- requests -------------------------------------------------------------------------------------------------

    def heartbeat(self, now_ms: int, asked: Beat, catalog: Catalog) -> Beaten | Refused:
        """ConsumerGroupHeartbeat."""
        if asked.epoch in {t.LEAVE_EPOCH, t.AWAY_EPOCH}:
            return self._leave(now_ms, asked)
        found = self._admit(asked)
        if isinstance(found, Refused):
            return found
        member = updated(found, asked)
        is_new = found.member_id not in self.members
        self._put(member)
        self._note_regex(asked, member)
        repeats = asked.epoch not in {t.JOIN_EPOCH, found.epoch}
        after = self._advance(now_ms, found, member, asked.owned, catalog, is_new=is_new, repeats=repeats)
        tells = repeats or asked.epoch == t.JOIN_EPOCH or asked.is_whole or after.assigned != found.assigned
        return Beaten(after.member_id, after.epoch, after.assigned if tells else None)

    def _advance(
        self,
        now_ms: int,
        old: Member,
        member: Member,
        owned: Places | None,
        catalog: Catalog,
        *,
        is_new: bool,
        repeats: bool = False,
    ) -> Member:
        """A member said what it wants and has: one step towards its target, which is made first where it has to be.

        `repeats`: it shows the epoch before its own, so the answer with its own was lost, and is given again. It takes no
        step before it shows its own: else several lost answers in a row would put it two epochs ahead of what it knows.
        """
        wish, old_wish = ((each.topics, each.regex, each.rack_id) for each in (member, old))
        self._follow(catalog, is_new or wish != old_wish)
        if self.row.epoch > self.row.target_epoch:
            self._assign(catalog)
        after = member
        if not repeats:
            after = consumer_reconciliation.reconciled(
                member,
                self.targets.get(member.member_id, NO_PLACES),
                self.row.target_epoch,
                owned,
                self._is_free_for(member.member_id),
            )
        self._put(after)
        self._time(now_ms, after, was=old)
        return after

    def _is_free_for(self, member_id: str) -> consumer_reconciliation.IsFree:
        return lambda place: self._holders.get(place) in {None, member_id}

    def leave(self, member_id: str, instance_id: str | None) -> Refused | None:
        """LeaveGroup of one member, by its id or, where that is empty, its instance id."""
        known = self._static.get(instance_id) if instance_id is not None else member_id
        if known is None or known not in self.members:
            return Refused.UNKNOWN_MEMBER
        if member_id and member_id != known:
            return Refused.FENCED_INSTANCE
        self._remove([known])
        return None

    def check_offsets(self, member_id: str, epoch: int) -> Refused | None:
        """May this member commit or fetch offsets? An epoch below 0 comes from outside: only while the group is empty."""
        if epoch < 0 and not self.members:
            return None
        member = self.members.get(member_id)
        if member is None:
            return Refused.UNKNOWN_MEMBER
        if epoch == member.epoch:
            return None
        return Refused.STALE_EPOCH if member.classic is None else Refused.OLD_GENERATION

    def tick(self, now_ms: int) -> list[str]:
        """Time passed: members go that are silent, or do not give up in time; their ids."""
        timers = (self._sessions, self._revocations, self._rejoins)
        late = {member for ends in timers for member, ends_ms in ends.items() if ends_ms <= now_ms}
        self._remove(sorted(late))
        return sorted(late)

    # -- who is in it ---------------------------------------------------------------------------------------------

    def _admit(self, asked: Beat) -> Member | Refused:
        """The member as it was: one who joins begins with nothing."""
        if asked.instance_id is not None:
            return self._admit_static(asked, asked.instance_id)
        member = self.members.get(asked.member_id)
        if member is None:
            return self._new(asked) if asked.epoch == t.JOIN_EPOCH else Refused.UNKNOWN_MEMBER
        if member.instance_id is not None or member.classic is not None:
            # Of a static member, who would have said so, or of another protocol
            return Refused.UNKNOWN_MEMBER
        return self._in_epoch(member, asked)

    def _admit_static(self, asked: Beat, instance_id: str) -> Member | Refused:
        known = self._static.get(instance_id)
        joins = asked.epoch == t.JOIN_EPOCH
        if known is None:
            if not joins:
                return Refused.UNKNOWN_MEMBER
            return Refused.UNRELEASED_INSTANCE if asked.member_id in self.members else self._new(asked)
        member = self.members[known]
        if member.classic is not None:  # its client was started anew, with the other protocol
            if not joins:
                return Refused.FENCED_INSTANCE if known != asked.member_id else Refused.UNKNOWN_MEMBER
            is_taken = asked.member_id in self.members
            return Refused.UNRELEASED_INSTANCE if is_taken else self._taken_over(member, asked.member_id)
        if known == asked.member_id:
            if member.epoch == t.AWAY_EPOCH:
                return self._taken_over(member, asked.member_id) if joins else Refused.UNKNOWN_MEMBER
            return self._in_epoch(member, asked)
        if not joins:
            return Refused.FENCED_INSTANCE
        if member.epoch != t.AWAY_EPOCH or asked.member_id in self.members:
            return Refused.UNRELEASED_INSTANCE
        return self._taken_over(member, asked.member_id)

    def _new(self, asked: Beat) -> Member | Refused:
        if len(self.members) >= self.bounds.max_size:
            return Refused.FULL
        if asked.instance_id is not None:
            self._static[asked.instance_id] = asked.member_id
        return Member(asked.member_id, instance_id=asked.instance_id)

    def _taken_over(self, old: Member, new_id: str) -> Member:
        """A static member comes back, under another id most of the time, to what it had."""
        target = self.targets.get(old.member_id, NO_PLACES)
        self._forget(old)
        member = msgspec.structs.replace(
            old,
            member_id=new_id,
            epoch=0,
            previous_epoch=0,
            state=MemberState.STABLE,
            revoking=NO_PLACES,  # who was to give them up is gone
            classic=None,
        )
        if member.instance_id is not None:
            self._static[member.instance_id] = new_id
        self._put(member)
        self._put_target(new_id, target)
        return member

    def _in_epoch(self, member: Member, asked: Beat) -> Member | Refused:
        """Is this what the member may think that its epoch is? The answer with the last one may have been lost."""
        if asked.epoch in {t.JOIN_EPOCH, member.epoch}:
            return member
        repeats = asked.epoch == member.previous_epoch and asked.epoch < member.epoch
        if repeats and asked.owned is not None and asked.owned <= member.assigned:
            return member
        return Refused.FENCED_EPOCH

    def _leave(self, now_ms: int, asked: Beat) -> Beaten | Refused:
        if asked.instance_id is not None:
            known = self._static.get(asked.instance_id)
            if known is None:
                return Refused.UNKNOWN_MEMBER
            if known != asked.member_id:
                return Refused.FENCED_INSTANCE
        member = self.members.get(asked.member_id)
        if member is None or member.classic is not None:
            return Refused.UNKNOWN_MEMBER
        if asked.epoch == t.LEAVE_EPOCH or member.instance_id is None:
            self._remove([member.member_id])
            return Beaten(member.member_id, t.LEAVE_EPOCH)
        away = msgspec.structs.replace(
            member,
            epoch=t.AWAY_EPOCH,
            previous_epoch=member.epoch,
            state=MemberState.STABLE,
            revoking=NO_PLACES,
        )
        self._put(away)
        self._time(now_ms, away)
        return Beaten(member.member_id, t.AWAY_EPOCH)

    def _remove(self, member_ids: Iterable[str]) -> None:
        gone = [self.members[member_id] for member_id in member_ids]
        for member in gone:
            self._forget(member)
        if gone:
            self._forget_regexes()
            self._bump()

    # -- epochs and targets ---------------------------------------------------------------------------------------

    def _bump(self) -> None:
        self._put_row(msgspec.structs.replace(self.row, epoch=self.row.epoch + 1))

    def _follow(self, catalog: Catalog, changed: bool) -> None:
        """A new epoch where a member's wish changed, or a topic that somebody reads."""
        topics_hash = self.row.topics_hash
        if changed or catalog.version != self._seen_version:
            self._seen_version = catalog.version
            topics_hash = self._hash(catalog)
        if changed or topics_hash != self.row.topics_hash:
            self._put_row(msgspec.structs.replace(self.row, topics_hash=topics_hash))
            self._bump()

    def _hash(self, catalog: Catalog) -> bytes:
        """Of what the target rests on: of racks only where members have some."""
        found = blake2b(digest_size=HASH_BYTES)
        with_racks = any(member.rack_id is not None for member in self.members.values())
        for name in sorted(self.subscribed):
            facts = catalog.topics.get(name)
            if facts is not None:
                found.update(f"{name} {facts.topic_id.hex()} {facts.partitions}\n".encode())
                if with_racks and facts.racks:
                    found.update(repr([sorted(racks) for racks in facts.racks]).encode())
        return found.digest()

    def _assign(self, catalog: Catalog) -> None:
        """Make the target assignment of this epoch."""
        readers: dict[str, frozenset[bytes]] = {}
        topics: dict[bytes, TopicFacts] = {}
        for member_id, member in self.members.items():
            found = [catalog.topics[name] for name in self._reads(member) if name in catalog.topics]
            readers[member_id] = frozenset(facts.topic_id for facts in found)
            topics.update((facts.topic_id, facts) for facts in found)
        assignor = _assignor(self.members.values(), self.bounds.assignors)
        sizes = {topic_id: facts.partitions for topic_id, facts in topics.items()}
        racks = Racks(
            {name: member.rack_id for name, member in self.members.items() if member.rack_id is not None},
            {topic_id: facts.racks for topic_id, facts in topics.items() if facts.racks},
        )
        targets = ASSIGNORS[assignor](readers, sizes, self.targets, racks)
        for member_id, places in targets.items():
            self._put_target(member_id, places)
        self._put_row(msgspec.structs.replace(self.row, target_epoch=self.row.epoch, assignor=assignor))

    def _reads(self, member: Member) -> tuple[str, ...]:
        return (*member.topics, *self.regexes.get(member.regex or "", ()))

    def _note_regex(self, asked: Beat, member: Member) -> None:
        """Keep what its expression matches now."""
        if member.regex and asked.regex_topics is not None:
            found = tuple(sorted(asked.regex_topics))
            if self.regexes.get(member.regex) != found:
                self.regexes[member.regex] = found
                self._changes[Kind.REGEX, member.regex] = found
                self._seen_version = -1
        self._forget_regexes()

    def _forget_regexes(self) -> None:
        """Those that no member has any more."""
        for regex in self.regexes.keys() - {member.regex for member in self.members.values()}:
            del self.regexes[regex]
            self._changes[Kind.REGEX, regex] = None

    # -- rows -----------------------------------------------------------------------------------------------------

    def _put_row(self, row: GroupRow) -> None:
        invariant(row.epoch >= self.row.epoch and row.target_epoch <= row.epoch, f"{self.row} -> {row}")
        self.row = row
        self._changes[Kind.GROUP, ""] = row

    def _put(self, member: Member) -> None:
        old = self.members.get(member.member_id)
        if old == member:
            return
        for place in (NO_PLACES if old is None else old.held) - member.held:
            del self._holders[place]
        for place in member.held:
            holder = self._holders.setdefault(place, member.member_id)
            invariant(holder == member.member_id, f"{place} is of {holder} and of {member.member_id}")
        self.members[member.member_id] = member
        self._changes[Kind.MEMBER, member.member_id] = member

    def _put_target(self, member_id: str, places: Places) -> None:
        if self.targets.get(member_id) != places:
            self.targets[member_id] = places
            self._changes[Kind.TARGET, member_id] = places

    def _forget(self, member: Member) -> None:
        member_id = member.member_id
        del self.members[member_id]
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        for place in member.held:
            if self._holders.get(place) == member_id:
                del self._holders[place]
        self._changes[Kind.MEMBER, member_id] = None
        if self.targets.pop(member_id, None) is not None:
            self._changes[Kind.TARGET, member_id] = None
        self._sessions.pop(member_id, None)
        self._revocations.pop(member_id, None)
        self._rejoins.pop(member_id, None)

    # -- time -----------------------------------------------------------------------------------------------------

    def _time(self, now_ms: int, member: Member, was: Member | None = None) -> None:
        """Its session begins anew; the time to give places up does when it is told to."""
        member_id = member.member_id
        classic = member.classic
        self._sessions[member_id] = now_ms + (
            self.bounds.session_timeout_ms if classic is None else classic.session_ms
        )
        if member.state is not MemberState.UNREVOKED:
            self._revocations.pop(member_id, None)
        elif was is None or member_id not in self._revocations or was.revoking != member.revoking:
            self._revocations[member_id] = now_ms + max(member.rebalance_ms, 1)


def _assignor(members: Iterable[Member], known: Sequence[str]) -> str:
    """The one that most members ask for; of those that as many ask for, the first by name."""
    votes: dict[str, int] = {}
    for member in members:
        if member.assignor is not None and member.assignor in known:
            votes[member.assignor] = votes.get(member.assignor, 0) + 1
    return min(votes, key=lambda name: (-votes[name], name), default=known[0])


def updated(member: Member, asked: Beat) -> Member:
    """The member as it says that it is; what it leaves out stays."""
    return msgspec.structs.replace(
        member,
        rack_id=asked.rack_id if asked.rack_id is not None else member.rack_id,
        client_id=asked.client_id,
        client_host=asked.client_host,
        rebalance_ms=asked.rebalance_ms if asked.rebalance_ms != -1 else member.rebalance_ms,
        topics=member.topics if asked.topics is None else tuple(sorted(set(asked.topics))),
        regex=member.regex if asked.regex is None else asked.regex or None,
        assignor=asked.assignor if asked.assignor is not None else member.assignor,
    )
