"""A clock that stands until the test moves it."""

from antiphon import system


class Clock(system.RealSystem):
    """What `system.monotonic_s()` reads where the fixture `clock` is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s
