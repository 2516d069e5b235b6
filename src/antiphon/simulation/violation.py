"""How a run says that a promise was broken."""


class ViolationError(Exception):
    """An invariant does not hold.

    Attributes:
        invariant: short name, such as `election-safety`.
        shard: the shard it was seen in, -1 if none.
    """

    def __init__(self, invariant: str, message: str, shard: int = -1) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.shard = shard


def require(condition: object, invariant: str, message: str, shard: int = -1) -> None:
    """Raise `ViolationError` unless `condition` is true."""
    if not condition:
        raise ViolationError(invariant, message, shard)
