"""Has a thread of this process finish what Spark's drivers leave undone (`antiphon.spark.staging.housekeeper`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from antiphon.node.config import NodeConfig, split_address
from antiphon.security.account import NOBODY, Account

if TYPE_CHECKING:
    import ssl

EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared


def start_epoch_finisher(config: NodeConfig, native: str, account: Account = NOBODY) -> Callable[[], None]:
    """Begin; returns what ends it. `native`: the address that others are told, of which the port counts here; `account`: to
    log in with.
    """
    from antiphon.spark.staging import housekeeper

    told = split_address(native)
    own = ("127.0.0.1" if config.listen_host in EVERYWHERE else config.listen_host, told[1])
    return housekeeper.start(config.node_id, own, account, _dialing(config, {own, told}))


def _dialing(config: NodeConfig, own: set[tuple[str, int]]) -> "Callable[[str, int], ssl.SSLContext | None]":
    """How to connect to this node, at the addresses `own`, and to others. New files count for the next connection."""
    tls, directory = config.security.tls, config.dir
    if not tls.on:
        return lambda _host, _port: None
    from antiphon.security.tls import nodes_client_context

    return lambda host, port: nodes_client_context(tls, directory, itself=(host, port) in own)
