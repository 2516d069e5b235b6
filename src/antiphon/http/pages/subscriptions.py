"""Subscriptions to metrics of Kafka's clients."""

from starlette.responses import Response

from antiphon.http.api.subscriptions import info_of
from antiphon.http.pages.site import Look, Site, paged
from antiphon.model.access import Operation, Resource


async def subscriptions(site: Site, look: Look) -> Response:
    """All of them, by name."""
    look.rights.require(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)
    wanted = look.text("q").lower()
    found = [
        info_of(one) for name, one in sorted(site.gateway.subscriptions.items()) if wanted in name.lower()
    ]
    return site.page(
        look,
        "client_metrics.html",
        title="Metrics of clients",
        page=paged(found, look.whole("start", 0)),
        is_filtered=bool(wanted),
    )
