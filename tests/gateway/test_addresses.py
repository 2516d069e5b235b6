"""How many connections one address may hold."""

import pytest

from antiphon.gateway.addresses import Addresses


def test_one_address_holds_its_share_and_leaves_the_rest() -> None:
    held = Addresses(2)
    assert [held.enter("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert held.enter("192.0.2.2")
    held.leave("192.0.2.1")
    assert not held.enter("192.0.2.1"), "who was turned away counts until it has left"
    held.leave("192.0.2.1")
    held.leave("192.0.2.1")
    assert held.enter("192.0.2.1")


def test_nothing_is_kept_of_who_has_left() -> None:
    held = Addresses(2)
    held.enter("192.0.2.1")
    held.leave("192.0.2.1")
    assert not held._held


@pytest.mark.parametrize("host", ["", "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
def test_this_machine_is_not_bounded(host: str) -> None:
    held = Addresses(1)
    assert all(held.enter(host) for _ in range(9))
