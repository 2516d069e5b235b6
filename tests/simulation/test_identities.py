"""Logins by all means at all listeners, rates of connections and quotas that change, in the world of whole nodes."""

import asyncio
from random import Random
from typing import Any

import pytest

from antiphon.security.session import session_of
from antiphon.security.settings import SASL_MECHANISMS, Security
from antiphon.security.tls import is_encrypted, principal_of
from antiphon.security.tokens import TokenCheck
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.tokens import OAUTH, TokenKeys, make_token
from antiphon.simulation.cluster.workloads.identities import BY_CERTIFICATE, SUBJECT
from antiphon.simulation.runtime.loop import VirtualLoop
from antiphon.simulation.runtime.network import Network
from antiphon.simulation.runtime.process import Process, Shield
from tests.security.test_authenticator import authenticator
from tests.simulation.told import WITH_LOGINS, each_mutant_is_seen, same_twice, sound_until

WORLD = {**WITH_LOGINS, "tenants": 0, "identities": 1}
LISTENERS = ("KafkaLine", "NativeLine", "HttpLine", "OxiaLine")
QUICK = (
    "identity-any-password",
    "identity-oxia-asks-nobody",
    "identity-secrets-are-sent-plainly",
    "identity-token-is-for-others",
    "rate-knows-no-bound",
    "rated-waits-on",
)
REACHED = (
    *(f"{one}-{told}" for one in LISTENERS for told in ("let", "denied", "refused")),
    *(
        "tokens-taken",
        "tokens-refused",
        "certificates-taken",
        "passwords-taken",
        "logins-ended",
        "shared-writes",
    ),
    *("rated-answers", "rated-pages", "rated-pages-refused", "rated-waited", "rated-released"),
    *("connections-made", "connections-refused", "connections-again", "identity-changes"),
)


@pytest.mark.parametrize("profile", ["raft", pytest.param("multi", marks=pytest.mark.slow)])
def test_whoever_shows_what_is_good_gets_in_and_nobody_else(profile: str) -> None:
    sound_until(REACHED, profile, 100, 8, **WORLD)


@pytest.mark.slow
def test_with_other_users_and_their_quotas() -> None:
    reached = ("logins", "floods", "metered", "told-to-wait", "tokens-taken", "rated-released")
    sound_until(reached, "oxia", 100, **{**WORLD, "principals": 1, "tenants": 1, "fault_ms": 3_000})


@pytest.mark.slow
def test_nothing_escapes_and_a_seed_stays_what_it_is() -> None:
    same_twice(draw_options(6, "oxia", **{**WORLD, "fault_ms": 2_000}))


test_a_mutant_is_seen = each_mutant_is_seen("identity-", "rate-", "rated-", quick=QUICK)


def test_drawn_worlds_have_identities_only_where_clients_log_in() -> None:
    drawn = [draw_options(seed) for seed in range(400)]
    with_identities = [one for one in drawn if one.identities]
    assert 5 < len(with_identities) < 40
    assert all(one.principals for one in with_identities)
    assert not any(draw_options(one.seed, principals=0).identities for one in with_identities)


class _Accepted(asyncio.Protocol):
    """Keeps its connection."""

    transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


@pytest.mark.parametrize("shield", [None, Shield(), Shield(SUBJECT)])
def test_both_ends_of_a_connection_know_how_it_is_protected(shield: Shield | None) -> None:
    loop = VirtualLoop(Random(1))
    network, accepted = Network(loop, Random(1)), _Accepted()
    node, client = Process(loop, "node", "node", 1), Process(loop, "client", "192.0.2.7", 2)
    client.shield = shield
    node.call(network.listen, lambda: accepted, 7400)
    task = client.run(network.connect(_Accepted, "node", 7400))
    loop.run_until(lambda: task.done() and accepted.transport is not None)
    theirs, mine = accepted.transport, task.result()[0]
    assert is_encrypted(theirs) == is_encrypted(mine) == (shield is not None)
    assert theirs.get_extra_info("peername")[0] == "192.0.2.7"
    found = principal_of(theirs)
    assert (None if found is None else found.name) == (BY_CERTIFICATE if shield == Shield(SUBJECT) else None)
    assert principal_of(mine) is None, "nodes show their certificates to nobody here"
    settings = Security(authentication=True, sasl_mechanisms=list(SASL_MECHANISMS))
    session = session_of(authenticator(settings), theirs, "test")
    assert ("PLAIN" in session.mechanisms) == (shield is not None)


def test_tokens_of_the_simulation_are_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.system.wall_s", lambda: 1_000.0)
    keys = TokenKeys()
    check = TokenCheck(OAUTH, keys)
    good = make_token(0, "alice", 900.0, 1_001.0)
    assert good == make_token(0, "alice", 900.0, 1_001.0), "the same each time"
    assert check.check(good.text) == ("alice", 1_001.0)
    keys.put((1, 2))
    monkeypatch.setattr("antiphon.security.tokens.CHECK_EVERY_S", 0.0)
    assert check.check(make_token(2, "bob", 900.0, 1_001.0).text).name == "bob"
    for token in (
        good,
        make_token(-1, "alice", 900.0, 1_001.0),
        make_token(1, "alice", 900.0, 1_001.0, iss="x"),
    ):
        with pytest.raises(Exception, match="not accepted"):
            check.check(token.text)
