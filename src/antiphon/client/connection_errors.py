"""How a client's connections end."""

from antiphon.errors import UnavailableError


class ConnectionLostError(UnavailableError, ConnectionError):
    """The connection ended before the reply came. Whether the request was carried out is not known."""


class NoHelloError(ConnectionLostError):
    """Whoever listens there said no hello: it may be another port."""


class ClientClosedError(UnavailableError):
    """The client was closed; a retry cannot succeed."""

    retriable = False
