"""Who asks over HTTP, and what may be seen: Basic or Bearer (RFC 7617, RFC 6750), with each request.

`/healthz`, `/livez` and `/readyz` are open to everybody, for monitors. `/topics` shows the topics that the client may
describe. Each page of the dashboard looks at what it shows. The others show the whole node, which takes DESCRIBE on the
cluster.
"""

from typing import Final

from antiphon.errors import NotReadyError, UnauthenticatedError
from antiphon.model.access import Operation, Resource
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.security.authorization import log_in
from antiphon.security.authorizer import Rights
from antiphon.security.session import Session

UNAUTHORIZED: Final = 401
UNAVAILABLE: Final = 503
FORBIDDEN: Final = 403
OPEN_PAGES: Final = ("/healthz", "/livez", "/readyz")
TOPICS_PAGE: Final = "/topics"
DASHBOARD: Final = "/ui/"  # and `/`: each of its pages asks for the rights that it needs
API: Final = "/api"  # as each operation does
CHALLENGE: Final = 'WWW-Authenticate: Basic realm="antiphon", charset="UTF-8"\r\nWWW-Authenticate: Bearer\r\n'

Reply = tuple[int, str, bytes]
"""Status, content type, content."""

_TEXT: Final = "text/plain; charset=utf-8"


def path_of(request_line: bytes) -> str:
    """The path that a request names, without its query."""
    words = request_line.split(b" ")
    return words[1].split(b"?", 1)[0].decode("latin-1") if len(words) > 1 else ""


def refused(session: Session, path: str, authorization: bytes) -> Reply | None:
    """Why the client is not answered, or None. Logs the session in with what the request says."""
    if path in OPEN_PAGES:
        return None
    try:
        if authorization:
            log_in(session, authorization)
        if not session.is_open:
            return UNAUTHORIZED, _TEXT, b"say who you are\n"
        asks_itself = path in {TOPICS_PAGE, "/"} or path.startswith((DASHBOARD, API))
        may = asks_itself or session.rights.may(Operation.DESCRIBE, Resource.CLUSTER)
    except UnauthenticatedError as error:
        return UNAUTHORIZED, _TEXT, f"{error.message}\n".encode()
    except NotReadyError as error:
        return UNAVAILABLE, _TEXT, f"{error.message}\n".encode()
    return None if may else (FORBIDDEN, _TEXT, b"this page takes the right to describe the cluster\n")


def may_see(rights: Rights, topic: TopicMeta) -> bool:
    """Is a topic shown?"""
    if not rights.limited:
        return True
    if is_internal(topic):
        return rights.sees(Operation.DESCRIBE, Resource.CLUSTER)
    resource = Resource.TABLE if topic.kind is Kind.TABLE else Resource.TOPIC
    return rights.sees(Operation.DESCRIBE, resource, topic.name)
