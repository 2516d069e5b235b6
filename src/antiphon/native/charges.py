"""What requests of the native protocol are charged with, by the client's quotas. Answers are charged where they are sent.

The protocol has no word for waiting: requests of a client that has to wait are begun later. What other nodes ask is not
charged.
"""

from typing import Any, Final, Protocol

from antiphon.gateway.interface import Gateway
from antiphon.gateway.mutations import partitions_of
from antiphon.gateway.quotas import Charged, Payer, Quotas, Use
from antiphon.model.attributes import IndexRows
from antiphon.model.key_order import OrderedKeys
from antiphon.model.loads import LoadRows
from antiphon.model.requests import (
    AppendBatch,
    Authenticate,
    Fetched,
    GetMetadata,
    TableRows,
    TableWrite,
)
from antiphon.model.table_transactions import KeysRead, PrepareWrite

WRITES: Final = (AppendBatch, TableWrite, LoadRows, PrepareWrite)
NEVER_WAIT: Final = (GetMetadata, Authenticate)  # whatever a client's quotas
READ: Final = (Fetched, TableRows, IndexRows, KeysRead, OrderedKeys)


class Client(Charged, Protocol):
    """The connection of a client (an `Exchange`)."""

    quotas: Quotas
    gateway: Gateway

    @property
    def payer(self) -> Payer | None:
        """On whose account its requests go."""


def client_id_of(who: str) -> str:
    """The program that says hello, without its version: `antiphon-client/0.1.0` is `antiphon-client`."""
    return who.partition("/")[0]


def charge_request(client: Client, body: Any, size_bytes: int, took_s: float) -> None:
    """Charge a request that was begun: its bytes where it writes, time of the event loop.

    What never waits makes nobody wait either: a client that waits asks for signs of life, and would wait for ever.
    """
    if isinstance(body, WRITES):
        client.quotas.charge(Use.PRODUCE, client.payer, size_bytes, client)
    waits = None if isinstance(body, NEVER_WAIT) else client
    client.quotas.charge(Use.REQUEST, client.payer, took_s, waits)


def charge_mutation(client: Client, body: Any) -> None:
    """Charge the partitions that are about to come or go."""
    partitions = partitions_of(client.gateway, body)
    if partitions:
        client.quotas.charge(Use.MUTATION, client.payer, partitions, client)


def charge_reply(client: Client, body: Any, size_bytes: int) -> None:
    """Charge what a client is sent of topics and tables."""
    if isinstance(body, READ):
        client.quotas.charge(Use.FETCH, client.payer, size_bytes, client)
