"""What operators decide, from the dashboard: a form, the plan that it comes to, and only then the action itself.

Each is an action of the API, with its rights, its plan and its refusals. A browser that is logged in sends its login with
whatever a page of any site has it send, so a form is taken only where the browser says that a page of this node sent it.

A password is asked for on the page of the plan, and goes from there to the operation: a plan needs none, so there is none
to be kept, or sent back and forth, in between.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from msgspec import Struct
from starlette.responses import RedirectResponse, Response

from antiphon.errors import AccessDeniedError, AntiphonError, InvalidRequestError, NotReadyError
from antiphon.http.access import may_see
from antiphon.http.api.answers import Outcome
from antiphon.http.api.call import Call
from antiphon.http.api.problems import STATUS_OF, AskedWronglyError
from antiphon.http.api.routes import ROUTES, Route
from antiphon.http.pages.access_forms import ACCESS_FORMS, AccessForm
from antiphon.http.pages.access_plans import Facts, Told
from antiphon.http.pages.action_table import ACTIONS, Action
from antiphon.http.pages.forms import AGAIN, asked_of, body_of, fields_of, secrets_of, without_secrets
from antiphon.http.pages.site import Look, Site
from antiphon.http.senders import foreign, from_own_page
from antiphon.model.access import Operation, Resource
from antiphon.model.metadata import ShardMeta
from antiphon.security.passwords import new_password

FIELDS_MAX: Final = 50
FORM: Final = "application/x-www-form-urlencoded"
CARRY_OUT: Final = "carry"


_ROUTES: Final = {route.name: route for route in ROUTES}


class Form(NamedTuple):
    """The form of one action, with what was filled in; never with a secret."""

    name: str
    given: dict[str, str]

    @property
    def action(self) -> Action:
        """What is said of it in the table."""
        return ACTIONS[self.name]

    @property
    def route(self) -> Route:
        """The operation of the API that carries it out."""
        return _ROUTES[self.action.operation or self.name]

    @property
    def special(self) -> AccessForm | None:
        """What is special about it; None: it is made from the operation's types."""
        return ACCESS_FORMS.get(self.name)

    def filled(self, text: str, *, quoted: bool = False) -> str:
        """With what was given for the fields that are named in braces."""
        for name in ("topic", "shard", "node", "name", "user", "subscription"):
            value = self.given.get(name, "")
            text = text.replace("{" + name + "}", quote(value, safe="") if quoted else value)
        return text


class Tried(NamedTuple):
    """What came of a form, or of its plan.

    Attributes:
        problem: why nothing did; empty: it did.
        told: what the plan says in words.
    """

    status: int = 200
    problem: str = ""
    outcome: Outcome | None = None
    told: Told = Told()


NOT_TRIED: Final = Tried()


async def act(site: Site, look: Look) -> Response:
    """The form of an action; with what was filled in, its plan; and with that taken, the action."""
    name = str(look.request.path_params["action"])
    if name not in ACTIONS:
        raise InvalidRequestError(f"there is no action {name[:100]!r}: there are {', '.join(ACTIONS)}")
    if site.gateway.metadata_version < 0:
        raise NotReadyError(
            f"node {site.gateway.node_id} was just started and knows no metadata yet: ask another node, or again"
        )
    if name in ACCESS_FORMS:
        _check_rights(look)
    if look.request.method != "POST":
        return _page(site, look, _form(name, look.request.query_params))
    filled_in = await _filled_in(site, look)
    form = _form(name, filled_in)
    if form.given.pop("step", "") != CARRY_OUT:
        return _page(site, look, form, await _tried(site, look, form, None))
    return await _carried_out(site, look, form, filled_in)


def _form(name: str, given: Mapping[str, str]) -> Form:
    return Form(name, without_secrets(given))


async def _carried_out(site: Site, look: Look, form: Form, filled_in: Mapping[str, str]) -> Response:
    secrets = {one.name: filled_in.get(one.name, "") for one in secrets_of(form.route)}
    done = await _tried(site, look, form, secrets)
    if done.problem and secrets:
        # They are asked for on the page of the plan, so they are asked for again there; unless there is no plan either.
        planned = await _tried(site, look, form, None)
        done = planned if planned.problem else planned._replace(status=done.status, problem=done.problem)
    if done.problem:
        return _page(site, look, form, done)
    said = urlencode(
        {"did": form.name, **({} if done.outcome is None or done.outcome.done else {"goes_on": "1"})}
    )
    return RedirectResponse(f"{form.filled(form.action.to, quoted=True)}?{said}", 303)


def _check_rights(look: Look) -> None:
    """Whoever may not change users, lists and quotas is told so before anything is filled in. Raises AccessDeniedError."""
    try:
        look.rights.require(Operation.ALTER, Resource.CLUSTER)
    except AccessDeniedError as error:
        raise AccessDeniedError(
            f"{error.message}: this takes ALTER on the cluster, which an access control entry gives",
            **error.details,
        ) from None


async def _tried(site: Site, look: Look, form: Form, secrets: Mapping[str, str] | None) -> Tried:
    """Carry out what a form says; without `secrets` (there may be none in them): have it planned."""

    def mutates(partitions: int) -> None:
        look.request.state.mutated = partitions

    try:
        asked = asked_of(form.route, form.given, dry_run=secrets is None)
        body = _body(site, form, secrets)
        facts = Facts(site.gateway.access, str(look.rights.principal), look.rights.limited)
        told = Told() if form.special is None else form.special.plan(facts, asked, body)
        call = Call(site.gateway, look.rights, look.asker, mutates, getattr(look.request.state, "host", ""))
        outcome: Outcome = await form.route.does(call, asked, body)
    except AskedWronglyError as error:
        return Tried(error.problem.status, error.problem.detail)
    except AntiphonError as error:
        return Tried(STATUS_OF.get(error.code, 409), error.message)
    return Tried(outcome=outcome, told=told)


def _body(site: Site, form: Form, secrets: Mapping[str, str] | None) -> Struct:
    """What the operation is told. A plan has none of the secrets: it would be the same with any. Raises
    InvalidRequestError.
    """
    if form.special is not None and form.special.body is not None:
        return form.special.body(site.gateway.access, form.given)
    if secrets is None:
        secrets = {one.name: new_password() for one in secrets_of(form.route)}
    elif any(text != secrets.get(name + AGAIN, text) for name, text in secrets.items()):
        raise InvalidRequestError("the two are not the same: type it twice, or paste it into both")
    return body_of(form.route, form.given | dict(secrets))


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


def _page(site: Site, look: Look, form: Form, tried: Tried = NOT_TRIED) -> Response:
    given, special, route = form.given, form.special, form.route
    if special is not None and special.fields is not None:
        fields = special.fields(given)
    else:
        fields = fields_of(route, given, site.gateway.metadata, _shard(site, look, given))
    return site.page(
        look,
        "action.html",
        tried.status,
        title=form.filled(form.action.title),
        action=form.action,
        section=form.action.start or form.action.to,
        about=route.summary if special is None else special.about(given),
        takes=route.takes,
        fields=fields,
        given=given,
        problem=tried.problem,
        outcome=tried.outcome,
        told=tried.told,
        secrets=secrets_of(route),
        back=form.action.start or form.filled(form.action.to, quoted=True),
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
