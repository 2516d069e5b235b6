"""Users, access control lists and quotas in the world of whole nodes: clean seeds, and judges that see mutants."""

import pytest

from antiphon.model.access import Acl, Operation, Pattern, Permission, Resource
from antiphon.simulation.cluster.options import NEEDS_NO_LOGIN, draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.cluster.workloads.access_history import Known, allowed
from tests.simulation.told import WITH_LOGINS, caught, mutants_of, same_twice, words

WORLD = {**WITH_LOGINS, "principals": 2}
MUTANTS = mutants_of("access-", "quota-", quick=("access-ignores-deny", "quota-never-throttles"))


@pytest.mark.parametrize(
    "profile", ["oxia", *(pytest.param(one, marks=pytest.mark.slow) for one in ("raft", "multi"))]
)
def test_rights_are_kept_while_they_change(profile: str) -> None:
    result = run_cluster(draw_options(10, profile, **WORLD))
    assert result.failure is None, words(result)
    for outcome in ("access-passed", "access-denied", "access-changes", "logins", "floods"):
        assert result.operations[outcome] > 3, (outcome, result.operations)


@pytest.mark.slow
def test_nothing_escapes_and_a_seed_stays_what_it_is() -> None:
    same_twice(draw_options(6, "oxia", **{**WORLD, "fault_ms": 2_000}))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_seen(name: str) -> None:
    failure = caught(name).failure
    assert failure is not None
    assert failure.invariant in {"access", "login", "page-denied", "quota"}


def test_the_judges_own_rule() -> None:
    def decide(*acls: Acl) -> bool:
        return allowed(Known(1, frozenset(), frozenset(acls), frozenset()), "a", Operation.READ, "topic-1")

    def acl(who: str, name: str, operation: Operation, *more: Pattern | Permission) -> Acl:
        pattern = Pattern.PREFIXED if Pattern.PREFIXED in more else Pattern.LITERAL
        permission = Permission.DENY if Permission.DENY in more else Permission.ALLOW
        return Acl(f"User:{who}", Resource.TOPIC, name, operation, pattern, permission)

    read = acl("a", "topic-1", Operation.READ)
    assert decide(read)
    assert decide(acl("*", "topic-", Operation.ALL, Pattern.PREFIXED))
    assert decide(acl("a", "*", Operation.READ))
    assert not decide()
    assert not decide(acl("b", "*", Operation.ALL), acl("a", "topic-1", Operation.WRITE))
    assert not decide(acl("a", "topic-2", Operation.READ), acl("a", "topic-", Operation.READ))
    assert not decide(read, acl("*", "to", Operation.ALL, Pattern.PREFIXED, Permission.DENY))
    assert decide(read, acl("a", "*", Operation.WRITE, Permission.DENY))


def test_drawn_worlds_ask_for_logins_only_of_who_can_log_in() -> None:
    drawn = [draw_options(seed) for seed in range(300)]
    with_users = [one for one in drawn if one.principals]
    assert 10 < len(with_users) < 60
    assert not any(getattr(one, name) for one in with_users for name in NEEDS_NO_LOGIN)
