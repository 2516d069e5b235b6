"""Has a thread of this process finish what Spark's drivers leave undone (`antiphon.spark.staging.housekeeper`)."""

from collections.abc import Callable

from antiphon.node.config import split_address
from antiphon.security.account import NOBODY, Account

EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared


def start_epoch_finisher(
    node_id: int, listen_host: str, native: str, account: Account = NOBODY
) -> Callable[[], None]:
    """Begin; returns what ends it. `native`: the address that others are told, of which the port counts; `account`: to log
    in with.
    """
    from antiphon.spark.staging import housekeeper

    host = "127.0.0.1" if listen_host in EVERYWHERE else listen_host
    return housekeeper.start(node_id, (host, split_address(native)[1]), account)
