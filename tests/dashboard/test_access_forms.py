"""Forms about users, access control lists and quotas: their plans, what they do, who may, and that no password is told."""

import html
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from structlog.testing import capture_logs

from antiphon.http.api.asked import AclEntry, QuotaBody
from antiphon.http.pages.access_forms import ACCESS_FORMS, OF_LIMITS, SHOWN
from antiphon.model.access import CLUSTER_NAME, Acl, Operation, Pattern, Permission, Resource
from antiphon.model.quotas import LIMITS, Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser
from antiphon.security.passwords import SHA_256, SHA_512, credentials, proves
from tests.dashboard.looking import HTTP_PORT, Page, page, served
from tests.dashboard.test_actions import OWN, hidden, post
from tests.dashboard.test_rights_and_rows import SECURE, basic
from tests.node.in_process import eventually, in_virtual_time

SECRET = "correct horse battery"
EVIL = '"><script>alert(1)</script>'


def linked(found: Page, action: str) -> list[dict[str, str]]:
    """What the links of a page to a form say."""
    links = re.findall(r'href="([^"]+)"', found.text)
    urls = [urlsplit(html.unescape(one)) for one in links]
    return [dict(parse_qsl(one.query)) for one in urls if one.path == f"/ui/actions/{action}"]


def told(found: Page) -> str:
    """The sentences of a plan, with its warnings."""
    parts = re.findall(r'<li>(.*?)</li>|<p class="note warn">(.*?)</p>', found.text)
    return html.unescape(" ".join(one or other for one, other in parts))


async def planned(action: str, **fields: str) -> Page:
    found = await post(action, "plan", fields)
    assert found.status == 200, found.text
    assert 'value="carry"' in found.text
    return found


async def carried(action: str, plan: Page, **secrets: str) -> None:
    done = await post(
        action, "carry", {name: html.unescape(one) for name, one in hidden(plan).items()} | secrets
    )
    assert (done.status, done.headers.get("location")) == (303, f"/ui/security?did={action}"), done.text


def typed(text: str, again: str | None = None) -> dict[str, str]:
    return {"password": text, "password_again": text if again is None else again}


@in_virtual_time
async def test_a_user_is_added_gets_another_password_and_is_removed() -> None:
    async with served(3) as nodes:
        access = nodes.nodes[0].gateway.access
        empty = await page("/ui/security")
        assert "The button above adds one" in empty.text
        assert linked(empty, "add_user") == [{}]
        form = await page("/ui/actions/add_user")
        assert 'type="password"' not in form.text, "the password is asked for with the plan"
        plan = await planned("add_user", user="ann", mechanisms="")
        assert "User 'ann' is added, and can log in with SCRAM-SHA-256 and SCRAM-SHA-512." in told(plan)
        assert "No entry names User:ann" in told(plan)
        fields = re.findall(
            r'<input type="password" name="(\w+)" value="" autocomplete="new-password"', plan.text
        )
        assert fields == ["password", "password_again"]
        assert "ann" not in access.users, "a plan decides nothing"
        await carried("add_user", plan, **typed(SECRET))
        shown = await page("/ui/security?did=add_user")
        assert "Add user: carried out" in shown.text
        assert linked(shown, "remove_user") == linked(shown, "set_password") == [{"user": "ann"}]
        assert linked(shown, "add_access_entry")[0] == {"principal": "User:ann"}
        assert [one.mechanism for one in access.users["ann"].credentials] == [SHA_256, SHA_512]
        assert all(proves(one, SECRET) for one in access.users["ann"].credentials)

        again = await post("add_user", "plan", {"user": "ann"})
        assert (again.status, "a user &#39;ann&#39; already" in again.text) == (400, True), (
            "she is not shut out by it"
        )

        plan = await planned("set_password", user="ann", mechanisms=SHA_512)
        assert "The one before is refused from then on" in told(plan)
        assert "logs in with SCRAM-SHA-512 then, and with nothing else" in told(plan)
        await carried("set_password", plan, **typed("  spaces count "))
        (kept,) = access.users["ann"].credentials
        assert (kept.mechanism, proves(kept, "  spaces count ")) == (SHA_512, True)

        await nodes.nodes[0].gateway.administer(
            AlterAcls((Acl("User:ann", Resource.TOPIC, "t", Operation.READ),))
        )
        await nodes.nodes[0].gateway.administer(AlterQuota(Quota("ann", connections=3.0)))
        await eventually(lambda: bool(access.quotas))
        plan = await planned("remove_user", user="ann")
        assert "Its connections are ended" in told(plan)
        for warning in ("1 entry that names User:ann stays", "Its quotas stay", "This is the last user"):
            assert warning in told(plan)
        assert "Carry out, for good" in plan.text
        await carried("remove_user", plan)
        assert "ann" not in access.users


@in_virtual_time
async def test_a_password_is_told_nowhere() -> None:
    async with served(1) as nodes:
        gateway = nodes.nodes[0].gateway
        pages: list[Page] = []
        with capture_logs() as logs:
            for step, fields, status in (
                ("plan", typed(SECRET), 200),  # too early: a browser may fill it in by itself
                ("carry", typed(SECRET, SECRET + "!"), 400),
                ("carry", typed("", ""), 400),
                ("carry", typed(SECRET + "\N{BELL}" * 3 + "\x07"), 400),
                ("carry", typed(SECRET * 100), 400),
                ("carry", {"password": SECRET}, 400),
                ("carry", {"user": "__ann", **typed(SECRET)}, 400),
                ("carry", {"mechanisms": "MD5", **typed(SECRET)}, 400),
                ("carry", typed(SECRET), 303),
            ):
                found = await post("add_user", step, {"user": "ann", **fields})
                assert found.status == status, (fields, found.text)
                pages.append(found)
                if status == 400 and "user" not in fields and "mechanisms" not in fields:
                    assert 'type="password"' in found.text, "it is asked for again, with the plan"
                    assert 'role="alert"' in found.text
                    assert not gateway.access.users
            for action in ("set_password", "remove_user", "alter_topic", "set_quota"):
                pages.append(await post(action, "plan", {"user": "ann", "topic": "default", **typed(SECRET)}))
                pages.append(
                    await page(f"/ui/actions/{action}?{urlencode({'user': 'ann', **typed(SECRET)})}")
                )
            pages.append(await page("/ui/security?did=add_user"))
        assert proves(gateway.access.users["ann"].credentials[0], SECRET)
        parts = (SECRET, SECRET.replace(" ", "+"), SECRET.replace(" ", "%20"))
        for found in pages:
            for secret in parts:
                assert secret not in found.text
                assert secret not in str(found.headers)
        assert any(one["event"] == "http_action" for one in logs)
        assert not [one for one in logs if any(secret in repr(one) for secret in parts)]


@in_virtual_time
async def test_entries_are_added_and_removed() -> None:
    async with served(1) as nodes:
        gateway = nodes.nodes[0].gateway
        entries = gateway.access.acls
        new = {
            "principal": " User:ann",
            "permission": "allow",
            "operation": "read",
            "resource": "topic",
            "name": "orders-",
            "pattern": "prefixed",
            "host": "*",
        }
        plan = await planned("add_access_entry", **new)
        assert (
            "User:ann is allowed READ on every topic whose name begins with 'orders-', from everywhere"
            in told(plan)
        )
        assert "There is no user 'ann'" in told(plan)
        await carried("add_access_entry", plan)
        wanted = Acl("User:ann", Resource.TOPIC, "orders-", Operation.READ, Pattern.PREFIXED)
        assert list(entries.values()) == [wanted]
        assert "Nothing changes" in told(await planned("add_access_entry", **new))

        whole = {
            "principal": "User:*",
            "permission": "deny",
            "operation": "all",
            "resource": "cluster",
            "host": "10.0.0.1",
        }
        plan = await planned("add_access_entry", **whole)
        assert "everybody (User:*) is denied everything (ALL) on the cluster, from 10.0.0.1" in told(plan)
        assert "A denial wins" in told(plan)
        await carried("add_access_entry", plan)
        links = linked(await page("/ui/security"), "remove_access_entry")
        assert len(links) == len(entries) == 2
        assert {one["name"] for one in links} == {"orders-", CLUSTER_NAME}

        link = next(one for one in links if one["principal"] == "User:ann")
        form = await page(f"/ui/actions/remove_access_entry?{urlencode(link)}")
        assert "Removes this entry: User:ann is allowed READ on every topic" in html.unescape(form.text)
        assert hidden(form) == link, "all of it is fixed"
        plan = await planned("remove_access_entry", **link)
        assert "What it allowed is refused at once" in told(plan)
        assert "It is the last one that names User:ann" in told(plan)
        assert wanted in entries.values()
        await carried("remove_access_entry", plan)
        assert [one.permission for one in entries.values()] == [Permission.DENY]
        gone = await post("remove_access_entry", "carry", link)
        assert (gone.status, "there is no such entry" in gone.text) == (400, True)


@in_virtual_time
async def test_quotas_are_set_changed_and_removed() -> None:
    async with served(1) as nodes:
        gateway = nodes.nodes[0].gateway
        await gateway.administer(AlterQuota(Quota("ann", connections=3.0)))
        await eventually(lambda: bool(gateway.access.quotas))
        plan = await planned("set_quota", user=" ann", producer_byte_rate="1000", request_percentage="12.5")
        assert "The quota of user 'ann', at each node: producer_byte_rate: none → 1,000" in told(plan)
        assert "connections" not in told(plan), "what is not filled in stays"
        await carried("set_quota", plan)
        ann = Quota("ann", producer_byte_rate=1000, request_percentage=12.5, connections=3)
        assert list(gateway.access.quotas.values()) == [ann]

        shown = await page("/ui/security")
        (link,) = linked(shown, "set_quota")[1:]
        assert link == {
            "user": "ann",
            "producer_byte_rate": "1000",
            "request_percentage": "12.5",
            "connections": "3",
            SHOWN: "producer_byte_rate,request_percentage,connections",
        }
        form = await page(f"/ui/actions/set_quota?{urlencode(link)}")
        assert 'name="producer_byte_rate" value="1000"' in form.text
        assert 'name="connection_creation_rate"' not in form.text, "a user cannot have it"
        plan = await planned("set_quota", **link | {"producer_byte_rate": "", "connections": "4"})
        assert "producer_byte_rate: 1,000 → none" in told(plan)
        assert "connections: 3 → 4" in told(plan)
        assert "request_percentage" not in told(plan)
        await gateway.administer(AlterQuota(Quota("ann", consumer_byte_rate=7.0)))  # meanwhile, by another
        await carried("set_quota", plan)
        ann = Quota("ann", consumer_byte_rate=7, request_percentage=12.5, connections=4)
        assert list(gateway.access.quotas.values()) == [ann]
        assert "Nothing changes" in told(await planned("set_quota", user="ann", connections="4"))

        await carried(
            "set_quota", await planned("set_quota", user="*", client_id="reports", consumer_byte_rate="5")
        )
        await carried("set_quota", await planned("set_quota", ip="*", connection_creation_rate="2"))
        shown = await page("/ui/security")
        assert len(gateway.access.quotas) == 3
        links = linked(shown, "remove_quota")
        assert {"user": "*", "client_id": "reports"} in links
        for link in links:
            form = await page(f"/ui/actions/remove_quota?{urlencode(link)}")
            assert hidden(form).items() >= link.items()
            plan = await planned("remove_quota", **link)
            assert "What the next wider quota says counts then" in told(plan)
            await carried("remove_quota", plan)
        assert not gateway.access.quotas


@pytest.mark.parametrize(
    ("action", "fields", "says"),
    [
        ("add_user", {"user": ""}, "does not fit"),
        ("add_user", {"user": "__node"}, "do not begin with"),
        ("set_password", {"user": "nobody"}, "there is no user"),
        ("remove_user", {"user": "nobody"}, "there is no user"),
        ("add_access_entry", {"principal": "ann", "operation": "read", "name": "t"}, "User:alice"),
        ("add_access_entry", {"principal": "User:ann", "operation": "fly", "name": "t"}, "fly"),
        (
            "add_access_entry",
            {"principal": "User:ann", "operation": "read", "name": ""},
            "the name of a resource",
        ),
        ("remove_access_entry", {}, "principal"),
        ("remove_access_entry", {"principal": "User:ann", "operation": "read", "name": "t"}, "no such entry"),
        ("set_quota", {"user": "ann"}, "one limit at least"),
        ("set_quota", {"user": "ann", "connections": "many"}, "does not fit"),
        ("set_quota", {"connections": "3"}, "a quota is for a user"),
        ("set_quota", {"ip": "10.0.0.1", "connections": "3"}, "connection_creation_rate"),
        ("remove_quota", {"user": "ann"}, "there is no quota of user"),
    ],
)
@in_virtual_time
async def test_what_is_refused_is_said_with_what_was_filled_in(
    action: str, fields: dict[str, str], says: str
) -> None:
    async with served(1) as nodes:
        before = nodes.nodes[0].gateway.access.version
        for step in ("plan", "carry"):
            found = await post(action, step, fields | (typed("s") if step == "carry" else {}))
            assert (found.status, says in html.unescape(found.text)) == (400, True), found.text
            assert 'role="alert"' in found.text
            assert all(value in found.text for value in fields.values())
        assert nodes.nodes[0].gateway.access.version == before


FILLED: Mapping[str, dict[str, str]] = {
    "add_user": {"user": "new", **typed("s")},
    "set_password": {"user": "root", **typed("s")},
    "remove_user": {"user": "root"},
    "add_access_entry": {"principal": "User:ann", "operation": "all", "resource": "cluster"},
    "remove_access_entry": {"principal": "User:ann", "operation": "describe", "resource": "cluster"},
    "set_quota": {"user": "root", "connections": "1"},
    "remove_quota": {"user": "kept"},
}


@in_virtual_time
async def test_who_may_not_alter_the_cluster_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.security.session.is_loopback", lambda _: True)
    assert FILLED.keys() == ACCESS_FORMS.keys()
    async with served(1, security=SECURE) as nodes:
        gateway = nodes.nodes[0].gateway
        for name in ("root", "ann"):
            await gateway.administer(AlterUser(name, credentials("secret")))
        await eventually(lambda: "ann" in gateway.access.users)
        sees = Acl("User:ann", Resource.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)
        await gateway.administer(AlterAcls((sees,)))
        await gateway.administer(AlterQuota(Quota("kept", connections=77.0)))
        mine = await page("/ui/security", Authorization=basic("ann", "secret"))
        assert (mine.status, "/ui/actions/" in mine.text, "Actions" in mine.text) == (200, False, False)
        before = (dict(gateway.access.users), dict(gateway.access.acls), dict(gateway.access.quotas))
        login = {"Authorization": basic("ann", "secret"), **OWN}
        for action, fields in FILLED.items():
            found = [await post(action, step, fields, headers=login) for step in ("plan", "carry")]
            found.append(await page(f"/ui/actions/{action}", Authorization=basic("ann", "secret")))
            for one in found:
                assert (one.status, "takes ALTER on the cluster" in one.text) == (403, True), action
                assert "<form" not in one.text
                assert "77" not in re.sub(r"\?\w+", "", one.text), "nor is she told what there is"
            assert (await post(action, "carry", fields)).status == 401
        assert (dict(gateway.access.users), dict(gateway.access.acls), dict(gateway.access.quotas)) == before
        boss = {"Authorization": basic("root", "secret"), **OWN}
        plan = await post("remove_user", "plan", {"user": "root"}, headers=boss)
        assert "This is you" in plan.text
        plan = await post("set_password", "plan", {"user": "root"}, headers=boss)
        assert "This is you" in plan.text
        done = await post("remove_user", "carry", {"user": "ann"}, headers=boss)
        assert (done.status, "ann" in gateway.access.users) == (303, False)


@in_virtual_time
async def test_a_page_of_another_site_cannot_change_who_may_what() -> None:
    async with served(1) as nodes:
        access = nodes.nodes[0].gateway.access
        version = access.version
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {},
            {"Host": f"evil.example:{HTTP_PORT}", "Origin": f"http://evil.example:{HTTP_PORT}"},
            {**OWN, "Content-Type": "text/plain"},
        ):
            for action, fields in FILLED.items():
                found = await post(action, "carry", fields, headers=headers)
                assert found.status in {400, 403}, (headers, action)
        for action, fields in FILLED.items():
            assert (
                await page(f"/ui/actions/{action}?{urlencode({**fields, 'step': 'carry'})}")
            ).status == 200
        assert access.version == version


@in_virtual_time
async def test_names_are_escaped_in_lists_forms_and_plans() -> None:
    async with served(1) as nodes:
        gateway = nodes.nodes[0].gateway
        await gateway.administer(AlterUser(EVIL, credentials("secret")))
        await gateway.administer(AlterAcls((Acl(f"User:{EVIL}", Resource.TOPIC, EVIL, Operation.READ),)))
        await gateway.administer(AlterQuota(Quota(EVIL, EVIL, connections=None, request_percentage=5.0)))
        await eventually(lambda: bool(gateway.access.quotas))
        shown = await page("/ui/security")
        assert "<script>alert" not in shown.text
        for action, number in (
            ("remove_user", 0),
            ("set_password", 0),
            ("remove_access_entry", 0),
            ("set_quota", 1),
            ("remove_quota", 0),
        ):
            link = linked(shown, action)[number]
            assert EVIL in " ".join(link.values()), action
            form = await page(f"/ui/actions/{action}?{urlencode(link)}")
            plan = await planned(action, **link)
            for found in (form, plan):
                assert (found.status, "<script>alert" in found.text) == (200, False), action


def test_forms_ask_for_what_the_api_takes() -> None:
    def names(action: str, given: Mapping[str, str]) -> set[str]:
        fields: Any = ACCESS_FORMS[action].fields
        return {one.name for one in fields(given)}

    assert (
        names("add_access_entry", {}) == names("remove_access_entry", {}) == set(AclEntry.__struct_fields__)
    )
    whose = set(QuotaBody.__struct_fields__) - {"limits"}
    assert names("remove_quota", {}) == whose
    assert names("set_quota", {}) == whose | set(LIMITS)
    assert set(OF_LIMITS) == set(LIMITS)


@in_virtual_time
async def test_an_operation_that_there_is_not_is_never_taken_for_all_of_them() -> None:
    async with served(1):
        for asked, selected in (("write", "write"), ("READ", "read"), ("", "read"), ("most", "read")):
            form = await page(f"/ui/actions/add_access_entry?principal=User%3Aann&operation={asked}")
            assert re.findall(r'<option value="(\w+)" selected>[A-Z]', form.text) == [selected]
