"""Whether a request that changes something may come from where it says it does.

A page of another site can have a browser send requests, with the login that the browser keeps, or to where nobody logs in.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address

from antiphon.model.metadata import ClusterMeta


def foreign(meta: ClusterMeta, headers: Mapping[bytes, bytes], *, logged_in: bool) -> str | None:
    """Why it may not: a page of another site sent it, or whoever made a name point here. None: it may.

    Args:
        meta: the cluster, for the names of its nodes.
        headers: by lower-case names.
        logged_in: the request proves who sent it, so a name that somebody made point here gives nobody a login.
    """
    host = headers.get(b"host", b"").decode("latin-1").lower()
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    if origin and origin.partition("://")[2] != host:
        return (
            f"a page of {origin[:100]} sent this to {host[:100]}: actions are taken from programs, and from pages of this "
            "node only"
        )
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    known = {node.http.rpartition(":")[0].lower() for node in meta.nodes}
    if logged_in or name in {*known, "localhost", ""} or _is_address(name.strip("[]")):
        return None
    return (
        f"this was sent to {host[:100]!r}, which is no name of a node of this cluster: whoever made that name point here "
        "may not be who you think. Use an address, localhost, or the name under which a node tells its HTTP listener"
    )


def from_own_page(headers: Mapping[bytes, bytes]) -> bool:
    """Does a browser say that a page of this node sent it? Every browser of today says so with what a form sends."""
    if b"origin" in headers:
        return True  # `foreign` has compared it
    return headers.get(b"sec-fetch-site", b"").strip().lower() == b"same-origin"


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
