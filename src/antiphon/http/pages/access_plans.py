"""What a change of users, access control lists or quotas comes to, in words: who gains what, and what stops working."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from antiphon.errors import InvalidRequestError
from antiphon.http.api.actions import acl_of, mechanisms_of, quota_of
from antiphon.http.api.asked import AclEntry, AclsBody, OfUser, PasswordBody, QuotaBody
from antiphon.model.access import ANY, AccessBook, Acl, Operation, Pattern, Permission, Resource
from antiphon.model.quotas import DEFAULT, Quota

USER: Final = "User:"


class Facts(NamedTuple):
    """What a plan goes by: the node's copy of the lists, the principal who asks, and whether anybody has to log in."""

    book: AccessBook
    principal: str
    limited: bool


class Told(NamedTuple):
    """What a plan says: sentences, and what to be careful about."""

    sentences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


NO_LOGINS: Final = (
    "This cluster asks nobody who they are: it counts once `authentication` is set (docs/security.md)."
)
NOTHING_CHANGES: Final = "Nothing changes: it is so already."


# -- users --------------------------------------------------------------------------------------------------------


def of_new_user(facts: Facts, asked: OfUser, body: PasswordBody) -> Told:
    """A user that there is already is refused: who adds one does not mean to shut another out."""
    if asked.user in facts.book.users:
        raise InvalidRequestError(
            f"there is a user {asked.user!r} already: give it another password on the page of security"
        )
    entries = _entries_of(facts, asked.user)
    told = (
        f"User {asked.user!r} is added, and can log in with {_list(mechanisms_of(body))}.",
        f"{_count(entries, 'entry names', 'entries name')} {USER}{asked.user} already, and then "
        f"{'counts' if len(entries) == 1 else 'count'}."
        if entries
        else f"No entry names {USER}{asked.user} yet: what is allowed to everybody is all that it may do.",
    )
    return Told(told, _without_logins(facts))


def of_new_password(facts: Facts, asked: OfUser, body: PasswordBody) -> Told:
    """See above. Raises InvalidRequestError."""
    known = _known(facts, asked.user)
    told = [
        f"User {asked.user!r} gets another password. The one before is refused from then on.",
        "Whoever has logged in with that one is hung up on by each node, within about 2 s of when it hears of it.",
    ]
    if set(known) != set(mechanisms_of(body)):
        told.append(
            f"It logs in with {_list(mechanisms_of(body))} then, and with nothing else; so far with {_list(known)}."
        )
    mine = (
        ("This is you: the browser asks for the new password afterwards.",)
        if _is_me(facts, asked.user)
        else ()
    )
    return Told(tuple(told), (*mine, *_without_logins(facts)))


def of_removed_user(facts: Facts, asked: OfUser, _body: object) -> Told:
    """See above. Raises InvalidRequestError."""
    _known(facts, asked.user)
    told = [
        f"User {asked.user!r} is removed: nobody can log in with this name and a password any more.",
        "Its connections are ended by each node, within about 2 s of when it hears of it.",
    ]
    warnings = []
    entries = _entries_of(facts, asked.user)
    if entries:
        warnings.append(
            f"{_count(entries, 'entry that names', 'entries that name')} {USER}{asked.user} "
            f"{'stays' if len(entries) == 1 else 'stay'}, and would count again for a user of that name."
        )
    if any(quota.user == asked.user for quota in facts.book.quotas.values()):
        warnings.append("Its quotas stay, and would count again for a user of that name.")
    if _is_me(facts, asked.user):
        warnings.append("This is you: you cannot log in with this name and password afterwards.")
    if len(facts.book.users) == 1:
        warnings.append("This is the last user: only certificates and tokens let anybody in afterwards.")
    return Told(tuple(told), tuple(warnings))


def _known(facts: Facts, user: str) -> list[str]:
    """With what a user logs in now. Raises InvalidRequestError."""
    if user not in facts.book.users:
        raise InvalidRequestError(f"there is no user {user!r}")
    return [one.mechanism for one in facts.book.users[user].credentials]


def _entries_of(facts: Facts, user: str) -> list[Acl]:
    return [one for one in facts.book.acls.values() if one.principal == USER + user]


def _is_me(facts: Facts, user: str) -> bool:
    return facts.limited and facts.principal == USER + user


def _without_logins(facts: Facts) -> tuple[str, ...]:
    return () if facts.limited else (NO_LOGINS,)


# -- entries ------------------------------------------------------------------------------------------------------


def entry(one: AclEntry) -> str:
    """An entry of the access control lists in words."""
    who = f"everybody ({one.principal})" if one.principal == USER + ANY else one.principal
    may = "is allowed" if one.permission is Permission.ALLOW else "is denied"
    what = "everything (ALL)" if one.operation is Operation.ALL else one.operation.value.upper()
    where = "from everywhere" if one.host == ANY else f"from {one.host}"
    return f"{who} {may} {what} on {_resource(one)}, {where}"


def _resource(one: AclEntry) -> str:
    kind = one.resource.value.replace("_", " ")
    if one.resource is Resource.CLUSTER:
        return "the cluster"
    if one.pattern is Pattern.PREFIXED:
        return f"every {kind} whose name begins with {one.name!r}"
    return f"every {kind}" if one.name == ANY else f"the {kind} {one.name!r}"


def of_entries(facts: Facts, _asked: object, body: AclsBody) -> Told:
    """Raises InvalidRequestError for an entry that is to be removed, and is not there."""
    if body.add:
        return _added(facts, body.add[0])
    return _removed(facts, body.remove[0])


def _added(facts: Facts, one: AclEntry) -> Told:
    if acl_of(one).key in facts.book.acls:
        return Told((f"There is this very entry: {entry(one)}.", NOTHING_CHANGES))
    told = [f"This entry is added: {entry(one)}."]
    if one.permission is Permission.DENY:
        told.append("A denial wins over every entry that allows the same. Super users are not held to it.")
    user, warnings = one.principal.removeprefix(USER), list(_without_logins(facts))
    if user != ANY and user not in facts.book.users:
        warnings.append(
            f"There is no user {user!r}: it counts for whoever a certificate or a token calls that, or who is added."
        )
    if facts.principal == one.principal and one.permission is Permission.DENY:
        warnings.append("This is about you.")
    return Told(tuple(told), tuple(warnings))


def _removed(facts: Facts, one: AclEntry) -> Told:
    acl = acl_of(one)
    if acl.key not in facts.book.acls:
        raise InvalidRequestError(f"there is no such entry: {entry(one)}")
    others = [each for each in facts.book.acls.values() if each.principal == acl.principal and each != acl]
    if acl.permission is Permission.ALLOW:
        ends = "What it allowed is refused at once, also on open connections, unless another entry allows it."
    else:
        ends = "What it denied is allowed at once, wherever another entry allows it."
    stay = (
        f"{_count(others, 'other entry names', 'other entries name')} {acl.principal}."
        if others
        else (f"It is the last one that names {acl.principal}.")
    )
    warnings = ("This is about you.",) if facts.limited and facts.principal == acl.principal else ()
    return Told((f"This entry is removed: {entry(one)}.", ends, stay), warnings)


# -- quotas -------------------------------------------------------------------------------------------------------


def whose(quota: Quota) -> str:
    """Whom a quota is about."""
    if quota.ip is not None:
        return "each address without one of its own" if quota.ip == DEFAULT else f"address {quota.ip}"
    names = []
    if quota.user is not None:
        names.append("each user without one of its own" if quota.user == DEFAULT else f"user {quota.user!r}")
    if quota.client_id is not None:
        names.append(
            "each client id without one of its own"
            if quota.client_id == DEFAULT
            else f"client id {quota.client_id!r}"
        )
    return " with ".join(names) or "nobody"


def plain(limit: float) -> str:
    """A limit as people write it."""
    return str(int(limit)) if limit == int(limit) else str(limit)


def of_quota(facts: Facts, _asked: object, body: QuotaBody) -> Told:
    """The limits that change."""
    quota, gone = quota_of(body)
    before = facts.book.quotas.get(quota.key, Quota(*quota.entity))
    after = before.changed(quota, gone)
    told = [
        f"{name}: {_limit(before.limits.get(name))} → {_limit(after.limits.get(name))}"
        for name in sorted(before.limits.keys() | after.limits.keys())
        if before.limits.get(name) != after.limits.get(name)
    ]
    if not told:
        return Told((f"Quota of {whose(quota)}.", NOTHING_CHANGES))
    told.insert(0, f"The quota of {whose(quota)}, at each node:")
    if not after.limits:
        told.append("Nothing is left of it. What the next wider quota says counts then, if there is one.")
    told.append("It counts at once, also for those who are made to wait now.")
    is_mine = facts.limited and quota.user is not None and _is_me(facts, quota.user)
    return Told(tuple(told), ("This is about you.",) if is_mine else ())


def _limit(limit: float | None) -> str:
    """With commas between thousands, as in other sentences: a plan's are escaped, which narrow spaces would show."""
    if limit is None:
        return "none"
    return f"{int(limit):,}" if limit == int(limit) else plain(limit)


# -- words --------------------------------------------------------------------------------------------------------


def _count(found: Sequence[object], one: str, many: str) -> str:
    return f"{len(found)} {one if len(found) == 1 else many}"


def _list(names: Sequence[str]) -> str:
    return " and ".join(names) or "nothing"
