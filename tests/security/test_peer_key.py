"""Nodes prove to each other that they know the key; nobody else does, whatever they replay."""

from dataclasses import dataclass

import msgspec
import pytest

from antiphon.errors import AntiphonError, ForeignDirectoryError, InvalidRequestError, UnprovenNodeError
from antiphon.model.peer_handshake import PeerChallenge, PeerProof
from antiphon.security.peer_key import Acceptor, Dialer, PeerKey, Terms

KEY = PeerKey(b"k" * 32)
OTHER = PeerKey(b"o" * 32)
replace = msgspec.structs.replace


@dataclass
class Pair:
    dialer: Dialer
    acceptor: Acceptor


def pair(mine: PeerKey = KEY, theirs: PeerKey = KEY) -> Pair:
    return Pair(Dialer(mine, "c", 1, 2, "i"), Acceptor(theirs, "c", 2))


def test_both_sides_prove_themselves() -> None:
    two = pair()
    assert two.acceptor.check(two.dialer.answer(two.acceptor.challenge(two.dialer.hello))) == 1


def test_a_node_with_another_key_is_refused_by_either_side() -> None:
    two = pair(OTHER)
    challenge = two.acceptor.challenge(two.dialer.hello)
    with pytest.raises(UnprovenNodeError, match="did not prove"):
        two.dialer.answer(challenge)
    terms = Terms("c", 1, 2, "i", two.dialer.hello.nonce, challenge.nonce)
    with pytest.raises(UnprovenNodeError, match="wrong"):
        two.acceptor.check(PeerProof(OTHER.proof(b"dialer", terms)))


@pytest.mark.parametrize("proof", [b"", b"x" * 32])
def test_made_up_proofs_are_wrong(proof: bytes) -> None:
    two = pair()
    challenge = two.acceptor.challenge(two.dialer.hello)
    with pytest.raises(UnprovenNodeError):
        two.dialer.answer(replace(challenge, proof=proof))
    with pytest.raises(UnprovenNodeError):
        two.acceptor.check(PeerProof(proof))


def test_the_acceptors_own_proof_is_none_of_the_dialer() -> None:
    two = pair()
    challenge = two.acceptor.challenge(two.dialer.hello)
    with pytest.raises(UnprovenNodeError):
        two.acceptor.check(PeerProof(challenge.proof))


def test_a_proof_is_good_for_one_connection() -> None:
    first, second = pair(), pair()
    proof = first.dialer.answer(first.acceptor.challenge(first.dialer.hello))
    second.acceptor.challenge(first.dialer.hello)  # all that was said is said again
    with pytest.raises(UnprovenNodeError):
        second.acceptor.check(proof)
    first.acceptor.check(proof)
    with pytest.raises(UnprovenNodeError):
        first.acceptor.check(proof)


def test_a_challenge_is_good_for_one_connection() -> None:
    first, second = pair(), pair()
    heard = first.acceptor.challenge(first.dialer.hello)
    with pytest.raises(UnprovenNodeError):
        second.dialer.answer(heard)


@pytest.mark.parametrize("change", [{"node_id": 3}, {"incarnation": "j"}, {"nonce": bytes(32)}])
def test_what_is_changed_on_the_way_is_seen(change: dict[str, object]) -> None:
    two = pair()
    challenge = two.acceptor.challenge(replace(two.dialer.hello, **change))
    with pytest.raises(UnprovenNodeError):
        two.dialer.answer(challenge)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, InvalidRequestError),
        ({"cluster_id": "d"}, ForeignDirectoryError),
        ({"to_node": 3}, ForeignDirectoryError),
        ({"node_id": 2}, UnprovenNodeError),
        ({"nonce": b"short"}, UnprovenNodeError),
    ],
)
def test_strange_beginnings_are_refused(change: dict[str, object], error: type[AntiphonError]) -> None:
    two = pair()
    with pytest.raises(error):
        two.acceptor.challenge(replace(two.dialer.hello, **change))


def test_a_short_nonce_of_the_acceptor_is_refused() -> None:
    two = pair()
    terms = Terms("c", 1, 2, "i", two.dialer.hello.nonce, b"")
    with pytest.raises(UnprovenNodeError):
        two.dialer.answer(PeerChallenge(b"", KEY.proof(b"acceptor", terms)))


def test_keys_that_could_be_guessed_are_refused_and_none_is_shown() -> None:
    with pytest.raises(InvalidRequestError, match="9 bytes"):
        PeerKey(b"changeme!\n")
    assert "kkk" not in repr(KEY)
