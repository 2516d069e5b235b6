"""Who may do what: a pure decision over access control lists, by Kafka's rules.

DENY wins over ALLOW. What no list allows is denied. Super users may do everything. READ, WRITE, DELETE and ALTER allow
DESCRIBE too, ALTER_CONFIGS allows DESCRIBE_CONFIGS; what is denied implies nothing. Decisions are kept until the lists
change.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from antiphon.errors import AccessDeniedError, NotReadyError
from antiphon.model.access import (
    ANY,
    CLUSTER_NAME,
    AccessBook,
    Acl,
    Operation,
    Pattern,
    Permission,
    Resource,
)
from antiphon.security.bounded_lines import BoundedLines, shown
from antiphon.security.principal import ANONYMOUS, NODE, Principal

KEPT_MAX: Final = 20_000  # decisions
NAME_MAX: Final = 300  # characters of a resource's name in the log
EVERYBODY: Final = "User:*"

_IMPLIES_DESCRIBE: Final = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
ALLOWED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    **{operation: frozenset({operation, Operation.ALL}) for operation in Operation},
    Operation.DESCRIBE: frozenset({Operation.DESCRIBE, Operation.ALL, *_IMPLIES_DESCRIBE}),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}
    ),
}


class DeniedCount(Protocol):
    """Where denied requests are counted."""

    denied: int


class _Question(NamedTuple):
    principal: Principal
    host: str
    operation: Operation
    resource: Resource
    name: str


class _Index:
    """The entries about one type of resource, by name."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._literal: dict[str, list[Acl]] = {}
        self._prefixed: dict[str, list[Acl]] = {}
        for acl in acls:
            names = self._literal if acl.pattern is Pattern.LITERAL else self._prefixed
            names.setdefault(acl.name, []).append(acl)
        self._lengths = sorted({len(prefix) for prefix in self._prefixed})

    def about(self, name: str) -> Iterator[Acl]:
        """The entries that match a name."""
        yield from self._literal.get(name, ())
        if name != ANY:
            yield from self._literal.get(ANY, ())
        for length in self._lengths:
            if length > len(name):
                break
            yield from self._prefixed.get(name[:length], ())


class Authorizer:
    """Decides for one node. `book` changes as the metadata does; `on` False: everybody may do everything."""

    def __init__(
        self, book: AccessBook, super_users: Iterable[str], counters: DeniedCount, *, on: bool = True
    ) -> None:
        self.on = on
        self._book = book
        self._super_users = frozenset(super_users)
        self._counters = counters
        self._version = -1
        self._indexes: dict[Resource, _Index] = {}
        self._kept: dict[_Question, bool] = {}
        self._lines = BoundedLines("denied", "principal", "requests", "denied")

    def is_super(self, principal: Principal) -> bool:
        """May the principal do everything?"""
        return principal.kind == NODE.kind or str(principal) in self._super_users

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource: Resource, name: str
    ) -> bool:
        """The decision; nobody is told of it.

        Raises NotReadyError at a node that was just started and knows no lists yet, but for super users.
        """
        if not self.on:
            return True
        if self._version != self._book.version:
            self._follow()
        question = _Question(principal, host, operation, resource, name)
        found = self._kept.get(question)
        if found is None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            found = self._kept[question] = self._decide(question)
        return found

    def allows_any(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> bool:
        """Is there a name that the principal may do this with? In Kafka: authorizeByResourceType."""
        if not self.on or self.is_super(principal):
            return True
        self._check_that_lists_are_known()
        names = {
            acl.name if acl.pattern is Pattern.LITERAL else acl.name + "\0"
            for acl in self._book.acls.values()
            if acl.resource is resource and acl.permission is Permission.ALLOW
        }
        return any(self.allows(principal, host, operation, resource, name) for name in sorted(names))

    def denied(self, question: Any) -> None:
        """Count a denied request, and tell the log of it: at a bounded rate for each principal, so that none hides another.

        A line after a second says how many were left out.
        """
        self._counters.denied += 1
        principal, host, operation, resource, name = question
        self._lines.log(
            str(principal),
            self._counters.denied,
            host=host,
            operation=str(operation),
            resource=str(resource),
            name=shown(name, NAME_MAX),
        )

    def log_left_out(self) -> None:
        """Tell the log how many denied requests had no line, by principal."""
        self._lines.log_left_out()

    def _follow(self) -> None:
        self._version = self._book.version
        self._kept.clear()
        by_type: dict[Resource, list[Acl]] = {}
        for acl in self._book.acls.values():
            by_type.setdefault(acl.resource, []).append(acl)
        self._indexes = {resource: _Index(acls) for resource, acls in by_type.items()}

    def _check_that_lists_are_known(self) -> None:
        """Who has a certificate or a token may ask before the node has heard of any list, and is not refused for good."""
        if not self._book.is_known:
            raise NotReadyError(
                "this node was just started and knows no access control lists yet; ask another, or again"
            )

    def _decide(self, question: _Question) -> bool:
        if self.is_super(question.principal):
            return True
        self._check_that_lists_are_known()
        index = self._indexes.get(question.resource)
        if index is None:
            return False
        who = {str(question.principal), EVERYBODY}
        found = [
            acl
            for acl in index.about(question.name)
            if acl.principal in who and acl.host in {ANY, question.host}
        ]
        forbidding = {question.operation, Operation.ALL}
        if any(acl.permission is Permission.DENY and acl.operation in forbidding for acl in found):
            return False
        allowing = ALLOWED_BY[question.operation]
        return any(acl.permission is Permission.ALLOW and acl.operation in allowing for acl in found)


class Rights:
    """What one connection may do: its principal, where it comes from, and who decides (None: it may do everything)."""

    __slots__ = ("_authorizer", "host", "principal")

    def __init__(
        self, authorizer: Authorizer | None, principal: Principal = ANONYMOUS, host: str = ""
    ) -> None:
        self._authorizer = authorizer if authorizer is not None and authorizer.on else None
        self.principal = principal
        self.host = host

    def __repr__(self) -> str:
        return f"Rights({self.principal}, {self.host})"

    @property
    def limited(self) -> bool:
        """Does anybody decide at all?"""
        return self._authorizer is not None

    @property
    def of_super_user(self) -> bool:
        """Are they those of a super user?"""
        return self._authorizer is not None and self._authorizer.is_super(self.principal)

    def may(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """The decision; a refusal is counted and logged."""
        authorizer = self._authorizer
        if authorizer is None or authorizer.allows(self.principal, self.host, operation, resource, name):
            return True
        authorizer.denied((self.principal, self.host, operation, resource, name))
        return False

    def sees(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """The decision about one of many things that were not asked for by name: nobody is told of a refusal."""
        authorizer = self._authorizer
        return authorizer is None or authorizer.allows(self.principal, self.host, operation, resource, name)

    def may_any(self, operation: Operation, resource: Resource) -> bool:
        """May the principal do this with any resource of the type?"""
        authorizer = self._authorizer
        return authorizer is None or authorizer.allows_any(self.principal, self.host, operation, resource)

    def require(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> None:
        """Raise AccessDeniedError unless it is allowed."""
        if not self.may(operation, resource, name):
            raise AccessDeniedError(
                f"{self.principal} may not {operation} {resource} {name!r}",
                principal=str(self.principal),
                operation=str(operation),
                resource=str(resource),
                name=name,
            )


EVERYTHING: Final = Rights(None)
"""For what the node does for itself, and for listeners without authentication."""
