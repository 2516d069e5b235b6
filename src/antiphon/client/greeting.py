"""What a client says on a new connection before its first request: hello, and a login where the node wants one."""

from typing import TYPE_CHECKING, Any, Final

from antiphon.client.account import account_for, check_logged_in, client_login
from antiphon.errors import ProtocolViolationError
from antiphon.model.body import reply_as
from antiphon.model.requests import PROTOCOL_VERSION, Authenticate, AuthenticateReply, Hello, HelloReply
from antiphon.security.account import Account

if TYPE_CHECKING:
    from antiphon.security.client_login import ClientLogin

CONNECT_TIMEOUT_S: Final = 2.0  # for a connection, and the answer to its hello
LOGIN_TIMEOUT_S: Final = 5.0  # a login that fails is answered after a second


class Greeting:
    """Gives the requests one after the other, for the replies. `cluster_id` is the node's, once it has said hello."""

    def __init__(
        self, where: str, who: str, account: Account | None = None, cluster_id: str | None = None
    ) -> None:
        """`where`: the node's address, for messages. `who`: what this client says that it is. `account`: with what to log
        in; None: as the environment says. `cluster_id`: the cluster that the node has to belong to; None: any.
        """
        self.cluster_id = ""
        self._where = where
        self._account = account
        self._hello = Hello(PROTOCOL_VERSION, who, cluster_id)
        self._login: ClientLogin | None = None

    def first(self) -> Hello:
        """The first request."""
        return self._hello

    def next(self, reply: Any) -> Authenticate | None:
        """The request after this reply; None: all is said.

        Raises ProtocolViolationError for what is no node, UnauthenticatedError where it does not take the login.
        """
        if self._login is not None:
            answer = reply_as(AuthenticateReply, reply, "to log in")
            message = self._login.next(answer.data)
            if message is not None:
                return Authenticate(message, "")
            check_logged_in(self._login, answer, self._where)
            return None
        if not isinstance(reply, HelloReply):
            raise ProtocolViolationError(f"{self._where} answered a hello with {type(reply).__name__}")
        self.cluster_id = reply.cluster_id
        own = account_for(reply, self._account)
        if own is None:
            return None
        self._login = client_login(own, reply.mechanisms, self._where)
        return Authenticate(self._login.first(), self._login.mechanism)
