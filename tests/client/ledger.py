"""A state machine for the tests of log-backed stores: an account that is never overdrawn, and who moved it last."""

import json
from collections.abc import Iterable
from typing import NamedTuple


class Ledger(NamedTuple):
    balance: int = 0
    moves: int = 0
    digest: int = 0


class OverdrawnError(Exception):
    """There is not so much in the account."""


def move(name: str, amount: int) -> bytes:
    """An operation. Names are unique."""
    return json.dumps([name, amount]).encode()


def name_of(operation: bytes | None) -> str:
    name: str = json.loads(operation or b"")[0]
    return name


def validate(ledger: Ledger, operation: bytes) -> None:
    if ledger.balance + json.loads(operation)[1] < 0:
        raise OverdrawnError(ledger.balance)


def apply(ledger: Ledger, operation: bytes) -> Ledger:
    name, amount = json.loads(operation)
    digest = (ledger.digest * 31 + sum(name.encode()) + amount) % (1 << 61)
    return Ledger(ledger.balance + amount, ledger.moves + 1, digest)


def replay(operations: Iterable[bytes | None]) -> Ledger:
    """The state after a log, in which every operation must have been permitted at its place (S2.16)."""
    ledger = Ledger()
    for operation in operations:
        assert operation is not None
        validate(ledger, operation)
        ledger = apply(ledger, operation)
    return ledger
