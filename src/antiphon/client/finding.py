"""Where a client connects to when its program names no server."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.client.account import default_account
from antiphon.client.local_folder import (
    AUTHORITY_FILE,
    CLUSTER_FILE,
    DEFAULT_DIR,
    FIRST_USER,
    PASSWORD_FILE,
    load_cluster,
    local_servers,
)
from antiphon.client.tls import environment_says_tls, tls_of
from antiphon.errors import InvalidRequestError, UnreachableError
from antiphon.security.account import Account

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing

SERVERS: Final = "ANTIPHON_SERVERS"


class Way(NamedTuple):
    """How to reach a cluster. `account` and `tls` of None: as the environment says. `directory`: the cluster's, if it is
    local and was found by that.
    """

    servers: str
    account: Account | None = None
    tls: "Dialing | None" = None
    directory: Path | None = None

    def unreachable(self, error: UnreachableError) -> UnreachableError:
        """The error with what to do about it."""
        if self.directory is None:
            return error
        hint = f"; {self.directory / CLUSTER_FILE} names these nodes: start them with `antiphon up`"
        return UnreachableError(f"{error.message}{hint}", **error.details)


def find_way(account: Account | None, tls: "Dialing | None") -> Way:
    """ANTIPHON_SERVERS of the environment, else the local cluster in the working directory (`antiphon-data`).

    `account` and `tls`: what the program says, which goes first; then the environment; then what a secure cluster's
    directory has for its clients.

    Raises UnreachableError when there is neither, InvalidRequestError when the directory cannot be read.
    """
    said = os.environ.get(SERVERS, "")
    directory = DEFAULT_DIR.absolute()
    if not said and load_cluster(directory) is None:
        raise UnreachableError(
            f"no cluster to connect to: {SERVERS} is not set, and there is no {DEFAULT_DIR / CLUSTER_FILE} in "
            f"{directory.parent}; start a cluster here with `antiphon up`, or say where one is: "
            'connect("host:port")'
        )
    servers, cluster = local_servers(said, directory)
    if cluster is not None and cluster.secure:
        account, tls = _of_secure(directory, account, tls)
    return Way(servers, account, tls, None if said else directory)


def _of_secure(
    directory: Path, account: Account | None, tls: "Dialing | None"
) -> "tuple[Account | None, Dialing | None]":
    if tls is None and not environment_says_tls():
        tls = tls_of(directory / AUTHORITY_FILE)
    if account is None and default_account().is_empty:
        file = directory / PASSWORD_FILE
        try:
            account = Account(FIRST_USER, file.read_text().rstrip("\n"))
        except OSError as error:
            raise InvalidRequestError(
                f"cannot read the password of {FIRST_USER} in {file}: {error.strerror}; "
                "log in as somebody with user= and password="
            ) from None
    return account, tls
