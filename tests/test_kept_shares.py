"""What a node keeps for its clients: none of them has so much that there is nothing left for the others."""

import pytest
from structlog.testing import capture_logs

from antiphon.errors import OverloadedError
from antiphon.shares import Shares, asking

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
            with pytest.raises(OverloadedError, match="this node has 24 of 24 things already"):
                shares.check(len(kept))
    assert [line["event"] for line in lines] == ["client_has_its_share"], "one in a while"


def test_one_large_thing_leaves_as_much_for_others() -> None:
    shares = Shares(MOST, "bytes")
    asking.set("a")
    shares.check(0, 12)
    with pytest.raises(OverloadedError, match="this client has 0 bytes of 0 of this node"):
        shares.check(0, 13)
    shares.divide("thing", {"a": 10, None: 4})
    with pytest.raises(OverloadedError, match="the rest is for others"):
        shares.check(14, 1)
    shares.check(14, 5, client="b")
    with pytest.raises(OverloadedError, match="this node has 14 of 24 bytes already"):
        shares.check(14, 11, client=None)
    shares.divide("thing", {"a": 2, "b": 3})
    shares.check(5, 9)
    shares.keep_only({"other"})
    shares.check(0, 12)
