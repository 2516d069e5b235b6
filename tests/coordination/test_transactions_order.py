"""What is done for several transactions at once is done in the order in which they began, in every process alike."""

from antiphon.coordination.transactions import Row, State
from antiphon.transactions import coordinator
from antiphon.transactions.rows import Kept


def test_transactions_under_way_stay_in_the_order_in_which_they_began() -> None:
    """The order of a set of texts is another one in each process, and so a seed of the simulator came out differently."""
    shell = coordinator.TransactionCoordinator.__new__(coordinator.TransactionCoordinator)
    led = coordinator._Led(1, 1)
    names = [f"id-{number}" for number in range(40)]
    for name in names:
        held = coordinator._Held(None)
        shell._note(led, name, held, Kept(Row(7, 0, 10_000, 0, State.ONGOING, began_ms=0), 1))
    assert list(led.ongoing) == names
    ended = Kept(Row(7, 0, 10_000, 0, State.EMPTY), 2)
    shell._note(led, names[3], coordinator._Held(None), ended)
    assert list(led.ongoing) == [name for name in names if name != names[3]]
