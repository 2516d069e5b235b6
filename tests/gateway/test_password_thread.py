"""Passwords are checked in a thread, those of each address in turn, and so many wait at most."""

import asyncio
import threading
import time
from unittest.mock import patch

import pytest

from antiphon.errors import OverloadedError
from antiphon.gateway import password_thread
from antiphon.gateway.password_thread import ADDRESS_WAITING_MAX, PasswordThread
from tests.coroutines import on_a_loop


class Checks:
    """Checks that wait until they are let on."""

    def __init__(self) -> None:
        self.let_on = threading.Event()
        self.order: list[str] = []

    def check(self, name: str) -> bool:
        self.let_on.wait(10.0)
        self.order.append(name)
        return threading.current_thread() is not threading.main_thread()


@on_a_loop
async def test_an_address_with_many_holds_no_other_up_and_is_refused_more() -> None:
    thread, checks = PasswordThread(), Checks()
    many = [asyncio.ensure_future(thread.run("a", checks.check, f"a{n}")) for n in range(ADDRESS_WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="try again"):
        await thread.run("a", checks.check, "one more")
    other = asyncio.ensure_future(thread.run("b", checks.check, "b"))
    await asyncio.sleep(0)
    assert (thread.waiting, thread.refused) == (ADDRESS_WAITING_MAX + 1, 1)
    checks.let_on.set()
    assert await other, "not on the event loop"
    assert checks.order.index("b") <= 2
    assert all(await asyncio.gather(*many))
    assert (thread.waiting, thread.checked) == (0, ADDRESS_WAITING_MAX + 1)


@on_a_loop
async def test_a_node_has_a_bound_over_all_addresses() -> None:
    thread, checks = PasswordThread(), Checks()
    with patch.object(password_thread, "WAITING_MAX", 3):
        some = [asyncio.ensure_future(thread.run(f"a{n}", checks.check, f"a{n}")) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await thread.run("b", checks.check, "b")
    checks.let_on.set()
    await asyncio.gather(*some)


@on_a_loop
async def test_who_is_gone_before_his_turn_costs_nothing() -> None:
    thread, checks = PasswordThread(), Checks()
    tasks = [asyncio.ensure_future(thread.run(name, checks.check, name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    await asyncio.sleep(0)
    began_s = time.monotonic()
    checks.let_on.set()
    assert await tasks[2]
    assert time.monotonic() - began_s < 5.0
    assert checks.order == ["a", "c"], "the one under way ends, the next one is not begun"
    assert thread.waiting == 0
