"""What a node keeps for its clients: none of them has so much that there is nothing left for the others."""

import pytest
from structlog.testing import capture_logs

from antiphon.errors import OverloadedError
from antiphon.gateway.shares import Shares, asking

MOST = 24


def filled(shares: Shares, client: object, kept: list[object]) -> list[object]:
    """As much as a client gets."""
    own: list[object] = []
    asking.set(client)
    while True:
        try:
            shares.check(len(kept))
        except OverloadedError:
            return own
        thing = object()
        shares.add(thing)
        own.append(thing)
        kept.append(thing)


@pytest.fixture(autouse=True)
def _nobody() -> None:
    asking.set(None)


def test_some_are_left_for_each_other_client() -> None:
    shares, kept = Shares(MOST, "things"), list[object]()
    assert [len(filled(shares, client, kept)) for client in "abcd"] == [12, 6, 3, 2]
    assert len(filled(shares, "a", kept)) == 0


def test_what_is_gone_is_a_place_again() -> None:
    shares, kept = Shares(MOST, "things"), list[object]()
    first = filled(shares, "a", kept)
    for thing in first[:4]:
        kept.remove(thing)
        shares.drop(thing)
        shares.drop(thing)
    assert len(filled(shares, "a", kept)) == 4


def test_what_was_read_is_somebodys_when_he_asks_about_it() -> None:
    shares = Shares(MOST, "things")
    read = [object() for _ in range(12)]
    for thing in read:
        shares.add(thing)
    assert len(filled(shares, "b", list(read))) == 6
    shares = Shares(MOST, "things")
    asking.set("a")
    for thing in read:
        shares.add(thing)
    asking.set("b")
    shares.add(read[0])
    assert filled(shares, "a", list(read)) == []
    assert len(filled(shares, "b", list(read))) == 6


def test_the_node_itself_has_all_there_are_and_a_refusal_says_why() -> None:
    shares, kept = Shares(MOST, "things"), [object() for _ in range(MOST - 1)]
    shares.check(len(kept))
    kept.append(object())
    with capture_logs() as lines:
        for client in (None, "a"):
            asking.set(client)
            with pytest.raises(OverloadedError, match="this node has 24 things already"):
                shares.check(len(kept))
    assert [line["event"] for line in lines] == ["client_has_its_share"], "one in a while"
