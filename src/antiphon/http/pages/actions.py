"""What operators decide, from the dashboard: a form, the plan that it comes to, and only then the action itself.

Each is an action of the API, with its rights, its plan and its refusals. A browser that is logged in sends its login with
whatever a page of any site has it send, so a form is taken only where the browser says that a page of this node sent it.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.responses import RedirectResponse, Response

from antiphon.errors import AccessDeniedError, AntiphonError, InvalidRequestError, NotReadyError
from antiphon.http.access import may_see
from antiphon.http.api.answers import Outcome
from antiphon.http.api.call import Call
from antiphon.http.api.problems import STATUS_OF, AskedWronglyError
from antiphon.http.api.routes import ROUTES, Route
from antiphon.http.pages.action_table import ACTIONS
from antiphon.http.pages.forms import asked_of, body_of, fields_of
from antiphon.http.pages.site import Look, Site
from antiphon.http.senders import foreign, from_own_page
from antiphon.model.metadata import ShardMeta

FIELDS_MAX: Final = 50
FORM: Final = "application/x-www-form-urlencoded"
CARRY_OUT: Final = "carry"


_ROUTES: Final = {route.name: route for route in ROUTES}


async def act(site: Site, look: Look) -> Response:
    """The form of an action; with what was filled in, its plan; and with that taken, the action."""
    name = str(look.request.path_params["action"])
    if name not in ACTIONS:
        raise InvalidRequestError(f"there is no action {name[:100]!r}: there are {', '.join(ACTIONS)}")
    if site.gateway.metadata_version < 0:
        raise NotReadyError(
            f"node {site.gateway.node_id} was just started and knows no metadata yet: ask another node, or again"
        )
    if look.request.method != "POST":
        return _form(site, look, name, dict(look.request.query_params))
    given = await _filled_in(site, look)
    is_plan = given.pop("step", "") != CARRY_OUT
    try:
        outcome = await _carried_out(look, site, _ROUTES[name], given, dry_run=is_plan)
    except AskedWronglyError as error:
        return _form(site, look, name, given, status=error.problem.status, problem=error.problem.detail)
    except AntiphonError as error:
        return _form(site, look, name, given, status=STATUS_OF.get(error.code, 409), problem=error.message)
    if is_plan:
        return _form(site, look, name, given, outcome=outcome)
    said = urlencode({"did": name, **({} if outcome.done else {"goes_on": "1"})})
    return RedirectResponse(f"{_filled(ACTIONS[name].to, given, quoted=True)}?{said}", 303)


async def _carried_out(
    look: Look, site: Site, route: Route, given: Mapping[str, str], *, dry_run: bool
) -> Outcome:
    asked, body = asked_of(route, given, dry_run=dry_run), body_of(route, given)

    def mutates(partitions: int) -> None:
        look.request.state.mutated = partitions

    outcome: Outcome = await route.does(Call(site.gateway, look.rights, look.asker, mutates), asked, body)
    return outcome


async def _filled_in(site: Site, look: Look) -> dict[str, str]:
    """The fields of a form that a page of this node sent. Raises AccessDeniedError, InvalidRequestError."""
    headers = dict(look.request.headers.raw)
    why = foreign(site.gateway.metadata, headers, logged_in=look.rights.limited)
    if why is None and not from_own_page(headers):
        why = "nothing says that a page of this node sent this: programs use the API (/api)"
    if why is not None:
        raise AccessDeniedError(why)
    said = headers.get(b"content-type", b"").split(b";")[0].strip().lower().decode("latin-1")
    if said != FORM:
        raise InvalidRequestError(f"a form is {FORM}, and this is {said[:100] or 'nothing'}")
    try:
        text = (await look.request.body()).decode("ascii")
        fields = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:
        raise InvalidRequestError(
            f"the form cannot be read: it has at most {FIELDS_MAX} fields, in UTF-8 and percent-encoding"
        ) from None
    return dict(fields)


def _form(
    site: Site,
    look: Look,
    name: str,
    given: Mapping[str, str],
    *,
    status: int = 200,
    problem: str = "",
    outcome: Outcome | None = None,
) -> Response:
    action, route = ACTIONS[name], _ROUTES[name]
    fields = fields_of(route, given, site.gateway.metadata, _shard(site, look, given))
    return site.page(
        look,
        "action.html",
        status,
        title=_filled(action.title, given),
        name=name,
        action=action,
        about=route.summary,
        takes=route.takes,
        fields=fields,
        given=given,
        problem=problem,
        outcome=outcome,
        back=_filled(action.to, given, quoted=True) if name != "create_topic" else "/ui/topics",
    )


def _shard(site: Site, look: Look, given: Mapping[str, str]) -> ShardMeta | None:
    """The shard that a form is about, if the one who looks may know of it."""
    number = given.get("shard", "")
    if not (number.isascii() and number.isdigit() and len(number) < 8):
        return None
    for topic in site.gateway.metadata.topics:
        if topic.name == given.get("topic") and may_see(look.rights, topic):
            return next((one for one in topic.shards if one.index == int(number)), None)
    return None


def _filled(text: str, given: Mapping[str, str], *, quoted: bool = False) -> str:
    for name in ("topic", "shard", "node", "name"):
        value = given.get(name, "")
        text = text.replace("{" + name + "}", quote(value, safe="") if quoted else value)
    return text
