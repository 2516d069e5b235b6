"""Commands about users, access control lists and quotas, against a coordinator whose proposals commit at once."""

from typing import Any

import pytest

from antiphon.coordination import access
from antiphon.coordination.actions import Answer, Propose
from antiphon.coordination.coordinator import Coordinator, CoordinatorConfig
from antiphon.coordination.state import ClusterState
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.model.access import Acl, Credential, Operation, Pattern, Resource
from antiphon.model.cluster import CommandDone
from antiphon.model.quotas import Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser

SHA256 = Credential("SCRAM-SHA-256", b"salt" * 4, 4096, b"k" * 32, b"v" * 32)
SHA512 = Credential("SCRAM-SHA-512", b"salt" * 4, 4096, b"k" * 64, b"v" * 64)
READ = Acl("User:alice", Resource.TOPIC, "t", Operation.READ)


class World:
    def __init__(self) -> None:
        self.state = ClusterState()
        self.coordinator = Coordinator(CoordinatorConfig("c"), self.state)
        self.answers: dict[int, Any] = {}
        self.records: list[tuple[bytes, bytes | None]] = []
        self._carry_out(self.coordinator.start(0))

    def _carry_out(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, Propose):
                version = self.state.version + 1
                self.state.apply(action.records, version)
                self.records += action.records
                self._carry_out(self.coordinator.committed(action.token, version, 0))
            elif isinstance(action, Answer):
                self.answers[action.token] = action.result

    def ask(self, request: Any) -> None:
        token = len(self.answers) + 1
        self._carry_out(self.coordinator.command(token, request))
        result = self.answers[token]
        if isinstance(result, AntiphonError):
            raise result
        assert isinstance(result, CommandDone)


def credentials_of(world: World, name: str) -> list[Credential]:
    return list(world.state.access.users[name].credentials)


def test_users_come_change_and_go() -> None:
    world = World()
    world.ask(AlterUser("alice", (SHA256,)))
    world.ask(AlterUser("alice", (SHA512,)))
    assert credentials_of(world, "alice") == [SHA256, SHA512]
    world.ask(AlterUser("alice", gone_mechanisms=("SCRAM-SHA-256",)))
    assert credentials_of(world, "alice") == [SHA512]
    world.ask(AlterUser("alice", gone_mechanisms=("SCRAM-SHA-512",)))
    assert not world.state.access.users, "a user is gone with its last credential"
    world.ask(AlterUser("alice", (SHA256, SHA512)))
    world.ask(AlterUser("alice", remove=True))
    assert not world.state.access.users
    world.ask(AlterUser("first", (SHA256,), if_none=True))
    world.ask(AlterUser("second", (SHA256,), if_none=True))
    assert list(world.state.access.users) == ["first"], "only the first user comes without being asked for"


@pytest.mark.parametrize(
    "request_",
    [
        AlterUser(""),
        AlterUser("a\nb", (SHA256,)),
        AlterUser("x" * 256, (SHA256,)),
        AlterUser("alice"),
        AlterUser("alice", remove=True),
        AlterUser("alice", gone_mechanisms=("SCRAM-SHA-256",)),
        AlterUser("alice", (SHA256, SHA256)),
        AlterUser("alice", (Credential("MD5", b"salt" * 4, 4096, b"k" * 16, b"v" * 16),)),
        AlterUser("alice", (Credential("SCRAM-SHA-256", b"salt" * 4, 4096, b"k" * 64, b"v" * 32),)),
        AlterUser("alice", (Credential("SCRAM-SHA-256", b"salt", 4096, b"k" * 32, b"v" * 32),)),
        AlterUser("alice", (Credential("SCRAM-SHA-256", b"salt" * 4, 100, b"k" * 32, b"v" * 32),)),
        AlterAcls((Acl("alice", Resource.TOPIC, "t", Operation.READ),)),
        AlterAcls((Acl("User:", Resource.TOPIC, "t", Operation.READ),)),
        AlterAcls((Acl("User:a", Resource.TOPIC, "", Operation.READ),)),
        AlterAcls((Acl("User:a", Resource.TOPIC, "t", Operation.CLUSTER_ACTION),)),
        AlterAcls((Acl("User:a", Resource.GROUP, "t", Operation.WRITE),)),
        AlterAcls((Acl("User:a", Resource.CLUSTER, "t", Operation.CREATE),)),
        AlterAcls((Acl("User:a", Resource.TOPIC, "*", Operation.READ, Pattern.PREFIXED),)),
        AlterQuota(Quota("alice", producer_byte_rate=0)),
        AlterQuota(Quota("alice", request_percentage=float("nan"))),
        AlterQuota(Quota("alice", request_percentage=1.0), ("request_percentage",)),
    ],
)
def test_what_means_nothing_is_refused(request_: Any) -> None:
    world = World()
    before = len(world.records)
    with pytest.raises(InvalidRequestError):
        world.ask(request_)
    assert len(world.records) == before, "nothing is written"


def test_lists_are_sets() -> None:
    world = World()
    world.ask(AlterAcls((READ, READ)))
    assert list(world.state.access.acls.values()) == [READ]
    before = len(world.records)
    world.ask(AlterAcls((READ,)))
    assert len(world.records) == before, "one that is there already is not written again"
    world.ask(AlterAcls(remove=(READ,)))
    world.ask(AlterAcls(remove=(READ,)))
    assert not world.state.access.acls


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "ACLS_MAX", 2)
    monkeypatch.setattr(access, "USERS_MAX", 1)
    monkeypatch.setattr(access, "QUOTAS_MAX", 1)
    world = World()
    three = tuple(Acl("User:a", Resource.TOPIC, name, Operation.READ) for name in "abc")
    with pytest.raises(InvalidRequestError, match="at most 2"):
        world.ask(AlterAcls(three))
    world.ask(AlterAcls(three[:2]))
    world.ask(AlterAcls(three[2:], remove=three[:1]))
    world.ask(AlterUser("a", (SHA256,)))
    with pytest.raises(InvalidRequestError, match="users already"):
        world.ask(AlterUser("b", (SHA256,)))
    world.ask(AlterUser("a", (SHA512,)))
    world.ask(AlterQuota(Quota("a", request_percentage=1)))
    with pytest.raises(InvalidRequestError, match="quotas already"):
        world.ask(AlterQuota(Quota("b", request_percentage=1)))


def test_limits_are_set_and_taken_away_one_by_one() -> None:
    world = World()

    def limits(quota: Quota) -> dict[str, float]:
        return world.state.access.quotas[quota.key].limits

    alice, everyone = Quota("alice"), Quota("")
    world.ask(AlterQuota(Quota("alice", producer_byte_rate=1000.0, request_percentage=50.0)))
    world.ask(AlterQuota(Quota("", consumer_byte_rate=5.0)))
    world.ask(AlterQuota(Quota("alice", consumer_byte_rate=7.0), ("request_percentage",)))
    assert limits(alice) == {"producer_byte_rate": 1000.0, "consumer_byte_rate": 7.0}
    before = len(world.records)
    world.ask(AlterQuota(Quota("alice", consumer_byte_rate=7.0)))
    world.ask(AlterQuota(Quota("bob"), ("consumer_byte_rate",)))
    assert len(world.records) == before, "nothing has changed"
    world.ask(AlterQuota(alice, ("producer_byte_rate", "consumer_byte_rate")))
    assert list(world.state.access.quotas) == [everyone.key], "who is limited in nothing has no quota"


def test_a_credential_does_not_tell_its_keys() -> None:
    assert "k" * 32 not in repr(SHA256)
    assert repr(SHA256) == "Credential(SCRAM-SHA-256, 4096 iterations)"
