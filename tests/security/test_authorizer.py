"""Decisions over access control lists: Kafka's rules, case by case."""

import pytest
from structlog.testing import capture_logs

from antiphon import system
from antiphon.errors import AccessDeniedError, NotReadyError
from antiphon.model.access import (
    AccessBook,
    AccessDelta,
    Acl,
    Operation,
    Pattern,
    Permission,
    Resource,
)
from antiphon.model.cluster import MetadataView
from antiphon.security.authorizer import EVERYTHING, Authorizer, Rights
from antiphon.security.bounded_lines import TOLD_PER_S, WHOS_PER_S
from antiphon.security.principal import ANONYMOUS, NODE, Principal

ALICE = Principal("User", "alice")
Op, R = Operation, Resource
DENY, PREFIXED = Permission.DENY, Pattern.PREFIXED


class Counters:
    denied = 0


def authorizer(*acls: Acl, super_users: tuple[str, ...] = (), on: bool = True) -> Authorizer:
    book = AccessBook()
    book.apply(AccessDelta(acls=acls), whole=True)
    return Authorizer(book, super_users, Counters(), on=on)


def acl(name: str, operation: Operation, who: str = "User:alice", **more: object) -> Acl:
    return Acl(who, R.TOPIC, name, operation, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("acls", "operation", "name", "allowed"),
    [
        ((), Op.READ, "t", False),
        ((acl("t", Op.READ),), Op.READ, "t", True),
        ((acl("t", Op.READ),), Op.READ, "t2", False),
        ((acl("t", Op.READ),), Op.WRITE, "t", False),
        ((acl("*", Op.READ),), Op.READ, "t", True),
        ((acl("t", Op.READ, "User:*"),), Op.READ, "t", True),
        ((acl("t", Op.READ, "User:bob"),), Op.READ, "t", False),
        ((acl("t", Op.ALL),), Op.ALTER_CONFIGS, "t", True),
        ((acl("or", Op.READ, pattern=PREFIXED),), Op.READ, "orders", True),
        ((acl("or", Op.READ, pattern=PREFIXED),), Op.READ, "or", True),
        ((acl("orders", Op.READ, pattern=PREFIXED),), Op.READ, "or", False),
        ((acl("or", Op.READ),), Op.READ, "orders", False),
        ((acl("t", Op.READ, host="10.0.0.1"),), Op.READ, "t", True),
        ((acl("t", Op.READ, host="10.0.0.2"),), Op.READ, "t", False),
        ((acl("t", Op.READ), acl("t", Op.READ, permission=DENY)), Op.READ, "t", False),
        ((acl("t", Op.READ), acl("t", Op.ALL, permission=DENY)), Op.READ, "t", False),
        ((acl("t", Op.READ), acl("*", Op.READ, permission=DENY)), Op.READ, "t", False),
        (
            (acl("t", Op.READ), acl("", Op.READ, "User:*", pattern=PREFIXED, permission=DENY)),
            Op.READ,
            "t",
            False,
        ),
        ((acl("t", Op.READ), acl("t", Op.READ, host="10.0.0.2", permission=DENY)), Op.READ, "t", True),
        ((acl("t", Op.READ),), Op.DESCRIBE, "t", True),
        ((acl("t", Op.WRITE),), Op.DESCRIBE, "t", True),
        ((acl("t", Op.DELETE),), Op.DESCRIBE, "t", True),
        ((acl("t", Op.ALTER),), Op.DESCRIBE, "t", True),
        ((acl("t", Op.CREATE),), Op.DESCRIBE, "t", False),
        ((acl("t", Op.DESCRIBE),), Op.READ, "t", False),
        ((acl("t", Op.ALTER_CONFIGS),), Op.DESCRIBE_CONFIGS, "t", True),
        ((acl("t", Op.READ), acl("t", Op.DESCRIBE, permission=DENY)), Op.DESCRIBE, "t", False),
        ((acl("t", Op.DESCRIBE), acl("t", Op.READ, permission=DENY)), Op.DESCRIBE, "t", True),
    ],
)
def test_decisions(acls: tuple[Acl, ...], operation: Operation, name: str, allowed: bool) -> None:
    decider = authorizer(*acls)
    assert decider.allows(ALICE, "10.0.0.1", operation, R.TOPIC, name) is allowed
    assert decider.allows(ALICE, "10.0.0.1", operation, R.TOPIC, name) is allowed, "also from what is kept"
    assert not decider.allows(ALICE, "10.0.0.1", operation, R.TABLE, name), "a table is no topic"


def test_who_needs_no_list() -> None:
    decider = authorizer(acl("t", Op.ALL, permission=DENY), super_users=("User:alice",))
    assert decider.allows(ALICE, "h", Op.READ, R.TOPIC, "t")
    assert decider.allows(NODE, "h", Op.CLUSTER_ACTION, R.CLUSTER, "kafka-cluster")
    assert not decider.allows(ANONYMOUS, "h", Op.READ, R.TOPIC, "t")
    assert authorizer(on=False).allows(ANONYMOUS, "h", Op.READ, R.TOPIC, "t")
    assert EVERYTHING.may(Op.ALTER, R.CLUSTER)


def test_a_node_that_knows_no_lists_yet_denies_nobody_for_good() -> None:
    """Who has a certificate or a token asks before the node has heard of the metadata."""
    book = MetadataView("c").access
    decider = Authorizer(book, ("User:root",), Counters())
    rights = Rights(decider, ALICE, "h")
    for ask in (rights.may, rights.sees, rights.may_any, rights.require):
        with pytest.raises(NotReadyError, match="just started"):
            ask(Op.READ, R.TOPIC)
    assert decider.allows(Principal("User", "root"), "h", Op.READ, R.TOPIC, "t")
    assert decider.allows(NODE, "h", Op.CLUSTER_ACTION, R.CLUSTER, "kafka-cluster")
    book.apply(AccessDelta(acls=(acl("t", Op.READ),)), whole=True)
    assert rights.may(Op.READ, R.TOPIC, "t")
    assert not rights.may(Op.WRITE, R.TOPIC, "t")


def test_a_change_of_the_lists_counts_at_once() -> None:
    book = AccessBook()
    decider = Authorizer(book, (), Counters())
    one = acl("t", Op.READ)
    for _ in range(2):
        assert not decider.allows(ALICE, "h", Op.READ, R.TOPIC, "t")
        book.apply(AccessDelta(acls=(one,)), whole=False)
        assert decider.allows(ALICE, "h", Op.READ, R.TOPIC, "t")
        book.apply(AccessDelta(gone_acls=(one.key,)), whole=False)


def test_any_resource_of_a_type() -> None:
    assert authorizer(acl("a", Op.WRITE)).allows_any(ALICE, "h", Op.WRITE, R.TOPIC)
    assert authorizer(acl("a", Op.WRITE, pattern=PREFIXED)).allows_any(ALICE, "h", Op.WRITE, R.TOPIC)
    assert not authorizer(acl("a", Op.READ)).allows_any(ALICE, "h", Op.WRITE, R.TOPIC)
    denied = acl("*", Op.ALL, permission=DENY)
    assert not authorizer(acl("a", Op.WRITE), denied).allows_any(ALICE, "h", Op.WRITE, R.TOPIC)


def test_refusals_are_counted_and_told_at_a_bounded_rate() -> None:
    counters = Counters()
    rights = Rights(Authorizer(AccessBook(), (), counters), ALICE, "10.0.0.1")
    with capture_logs() as lines:
        for _ in range(TOLD_PER_S * 5):
            assert not rights.may(Op.WRITE, R.TOPIC, "t")
        assert not rights.sees(Op.WRITE, R.TOPIC, "t")
    assert counters.denied == TOLD_PER_S * 5
    lines = [line for line in lines if line["event"] == "denied"]
    assert TOLD_PER_S <= len(lines) <= 2 * TOLD_PER_S
    told = {key: lines[0][key] for key in ("event", "principal", "host", "operation", "resource", "name")}
    assert told == {
        "event": "denied",
        "principal": "User:alice",
        "host": "10.0.0.1",
        "operation": "write",
        "resource": "topic",
        "name": "t",
    }
    with pytest.raises(AccessDeniedError, match="User:alice may not write topic 't'"):
        rights.require(Op.WRITE, R.TOPIC, "t")


def test_nobody_hides_the_refusals_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(system, "monotonic_s", lambda: now_s)
    decider = Authorizer(AccessBook(), (), Counters())
    loud, quiet = Rights(decider, ALICE, "h"), Rights(decider, Principal("User", "bob"), "h")
    with capture_logs() as lines:
        for _ in range(TOLD_PER_S * 5):
            assert not loud.may(Op.WRITE, R.TOPIC, "t")
        assert not quiet.may(Op.READ, R.TOPIC, "secret")
        now_s += 1.5
        assert not quiet.may(Op.READ, R.TOPIC, "secret")
    told = [line["principal"] for line in lines if line["event"] == "denied"]
    assert (told.count("User:alice"), told.count("User:bob")) == (TOLD_PER_S, 2)
    (left_out,) = (line for line in lines if line["event"] == "denied_left_out")
    assert (left_out["principal"], left_out["requests"]) == ("User:alice", TOLD_PER_S * 4)


def test_many_principals_fill_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "monotonic_s", lambda: 100.0)
    decider = Authorizer(AccessBook(), (), Counters())
    with capture_logs() as lines:
        for number in range(WHOS_PER_S * 4):
            assert not Rights(decider, Principal("User", f"u{number}"), "h").may(Op.READ, R.TOPIC, "t")
        assert len(lines) == WHOS_PER_S
        decider.log_left_out()
    left_out = lines[WHOS_PER_S:]
    assert len(left_out) == WHOS_PER_S + 1
    assert sum(line["requests"] for line in left_out) == WHOS_PER_S * 3
