"""The dashboard in a real Chromium without a screen, before one small cluster of processes.

Skipped where there is no Chromium with its driver (Debian: `apt-get install chromium chromium-driver`). With DASHBOARD_SHOTS
naming a folder, the pictures of docs/dashboard.md are written there.
"""

import contextlib
import itertools
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

import antiphon
from antiphon.errors import AntiphonError, UnknownTopicError
from antiphon.model.access import Acl, Operation, Pattern, Resource
from antiphon.model.client_metrics import AlterSubscription
from antiphon.model.quotas import Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser
from antiphon.security.passwords import credentials
from antiphon.testing.running import Cluster

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="there is no Chromium: apt-get install chromium chromium-driver",
    ),
]
SHOTS = os.environ.get("DASHBOARD_SHOTS", "")
WIDE, PHONE = (1280, 900), (390, 844)
PATIENCE_S = 15.0
HOSTILE = b"<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
LONG = "a-user-with-a-name-that-is-wider-than-the-window-of-a-telephone-is"
PATHS = (
    "/",
    "/ui/topics",
    "/ui/topics/flights",
    "/ui/topics/flights/records",
    "/ui/topics/flights/record?shard=0&offset=0",
    "/ui/tables/aircraft",
    "/ui/groups",
    "/ui/transactions",
    "/ui/jobs",
    "/ui/queries",
    "/ui/sessions",
    "/ui/client-metrics",
    "/ui/security",
    "/api",
    "/ui/nodes/0",
    "/ui/actions/create_topic",
    "/ui/actions/elect_leader?topic=flights&shard=0",
    "/ui/actions/alter_node_settings?node=0",
    "/ui/actions/add_user",
    "/ui/actions/add_access_entry?principal=User%3Aann",
    "/ui/actions/set_quota",
    f"/ui/actions/put_subscription?subscription={LONG}&metrics={LONG}",
    f"/ui/actions/remove_quota?user={LONG}",
    "/ui/none",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster with some data."""
    cluster = Cluster(1 if not SHOTS else 3)
    cluster.start()
    try:
        with antiphon.connect(cluster.servers) as db:
            db.create_topic("flights", shards=2)
            db.create_table("aircraft", shards=2)
            flights, aircraft = db.topic("flights"), db.table("aircraft")
            flights.append(HOSTILE, key=HOSTILE, shard=0)
            for number in range(60):
                flights.append(json.dumps({"flight": f"UA{number}"}).encode(), key=b"N%d" % number, shard=1)
            for number in range(5):
                aircraft.put(f"N{number}", HOSTILE)
            db.run(db.aio.administer(AlterUser(LONG, credentials("secret"))))
            entry = Acl(f"User:{LONG}", Resource.TOPIC, LONG, Operation.READ, Pattern.PREFIXED)
            db.run(db.aio.administer(AlterAcls((entry,))))
            db.run(
                db.aio.administer(AlterSubscription(LONG, {"metrics": LONG, "match": f"client_id={LONG}"}))
            )
            db.run(db.aio.administer(AlterQuota(Quota(LONG, producer_byte_rate=1e9, connections=9.0))))
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def base(cluster: Cluster) -> str:
    """The dashboard's address."""
    return f"http://{cluster.http.split(',')[0].removeprefix('http://')}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver import Chrome
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = CHROMIUM or ""
    folder = tmp_path_factory.mktemp("chromium")
    for one in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        f"user-data-dir={folder}",
    ):
        options.add_argument(f"--{one}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(DRIVER or ""))
    try:
        yield driver
    finally:
        driver.quit()


def looks(browser: Any, size: tuple[int, int], scheme: str = "light") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def until(browser: Any, script: str) -> Any:
    """What a script returns once that is true."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := browser.execute_script(f"return {script}")):
        assert time.monotonic() < end_s, f"never: {script}"
        time.sleep(0.05)
    return found


def test_no_page_runs_what_records_hold_nor_complains_nor_is_wider_than_a_phone(
    browser: Any, base: str
) -> None:
    for size, scheme in ((WIDE, "light"), (PHONE, "dark")):
        looks(browser, size, scheme)
        for path in PATHS:
            browser.get(base + path)
            assert browser.title.endswith("· Antiphon"), path
            assert not browser.find_elements("css selector", "main img, main script"), path
            wide = browser.execute_script("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{path} is {wide} pixels too wide at {size[0]}"
            told = [one["message"] for one in browser.get_log("browser") if "/ui/none" not in one["message"]]
            assert not told, f"{path}: {told}"


def test_the_name_of_every_page_is_in_sight_at_every_width(browser: Any, base: str) -> None:
    outside = """Array.from(document.querySelectorAll('.bar nav a')).filter(link => {
        const [at, bar] = [link.getBoundingClientRect(), link.parentElement.getBoundingClientRect()];
        const behind = document.elementFromPoint(at.left + at.width / 2, at.top + at.height / 2);
        return at.right > bar.right + 1 || at.left < bar.left - 1 || behind !== link;
    }).map(link => link.textContent)"""
    for size in (PHONE, (700, 800), (900, 800), (1100, 800), WIDE, (1600, 900)):
        looks(browser, size)
        browser.get(f"{base}/ui/topics")
        assert browser.execute_script(f"return {outside}") == [], f"at {size[0]} pixels"


def test_plots_are_drawn_and_nothing_moves_when_they_are(browser: Any, base: str) -> None:
    looks(browser, WIDE)
    browser.get(base + "/")
    until(browser, "document.querySelector('#map')")
    before = browser.execute_script("return document.querySelector('#map').getBoundingClientRect().top")
    assert until(browser, "document.querySelectorAll('.plot canvas').length") == 4
    assert (
        browser.execute_script("return document.querySelector('#map').getBoundingClientRect().top") == before
    )
    assert until(browser, "document.querySelector('[data-now=records]').textContent").endswith("/s")
    browser.execute_script(
        "document.querySelector('[data-now=latency]').textContent = '1,234 ms · 12,345 ms'"
    )
    tops = (
        "return Array.from(document.querySelectorAll('.plot')).map(plot => plot.getBoundingClientRect().top)"
    )
    assert len(set(browser.execute_script(tops))) == 1, "long figures move no plot"
    line = browser.find_element("css selector", "#time-line svg")
    assert line.size["width"] > 1_000, "the axis of what happened is as wide as its page"
    told = browser.find_element("css selector", "#time-line h3 .quiet").text
    has_marks = bool(line.find_elements("css selector", "circle.mark"))
    assert has_marks == (not told.startswith("0 ")), (
        "a cluster whose nodes began together may have nothing to tell"
    )


def test_a_filter_answers_while_one_types_and_keys_go_everywhere(browser: Any, base: str) -> None:
    from selenium.webdriver.common.keys import Keys

    looks(browser, WIDE)
    browser.get(base + "/ui/topics")
    body = browser.find_element("css selector", "body")
    body.send_keys("/")
    box = browser.switch_to.active_element
    assert box.get_attribute("name") == "q"
    box.send_keys("fli")
    until(browser, "document.querySelectorAll('#rows tbody tr').length === 1")
    assert "q=fli" in browser.current_url
    box.send_keys(Keys.ESCAPE)
    browser.find_element("css selector", "body").send_keys("gs")
    until(browser, "document.title.startsWith('Security')")
    browser.find_element("css selector", "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to content"


def test_a_topic_is_made_with_the_keyboard_alone_and_its_plan_is_shown_first(browser: Any, base: str) -> None:
    from selenium.webdriver.common.keys import Keys

    looks(browser, WIDE)
    browser.get(base + "/ui/topics")
    browser.find_element("link text", "New topic or table").send_keys(Keys.ENTER)
    until(browser, "document.title.startsWith('Make a topic')")
    browser.find_element("name", "name").send_keys("by-hand")
    browser.find_element("name", "config").send_keys("retention.ms=5000")
    browser.find_element("name", "name").send_keys(Keys.ENTER)
    until(browser, "document.querySelector('.plan')")
    assert "by-hand/0" in browser.find_element("css selector", ".plan").text
    assert "retention.ms=5000" in browser.find_element("css selector", ".plan").text
    browser.find_element("link text", "Change").send_keys(Keys.ENTER)
    until(browser, "document.querySelector('textarea')")
    box = browser.find_element("name", "name")
    assert box.get_attribute("value") == "by-hand", "what was filled in is still there"
    box.send_keys("2", Keys.ENTER)
    until(browser, "document.querySelector('.plan')")
    browser.find_element("css selector", "button.main").send_keys(Keys.ENTER)
    until(browser, "document.title.startsWith('by-hand2')")
    assert "carried out" in browser.find_element("css selector", "[role=status]").text
    assert browser.current_url.endswith("/ui/topics/by-hand2?did=create_topic")


def test_a_user_is_added_and_removed_with_the_keyboard_alone_on_a_phone_in_the_dark(
    browser: Any, base: str
) -> None:
    from selenium.webdriver.common.keys import Keys

    looks(browser, PHONE, "dark")
    browser.get(base + "/ui/security")
    browser.find_element("link text", "Add a user").send_keys(Keys.ENTER)
    until(browser, "document.title.startsWith('Add a user')")
    browser.find_element("name", "user").send_keys("by-hand", Keys.ENTER)
    until(browser, "document.querySelector('.plan')")
    assert "is added" in browser.find_element("css selector", ".plan").text
    browser.find_element("name", "password").send_keys(Keys.ENTER)
    assert browser.find_element("css selector", "[name=password]:invalid"), (
        "the browser wants one, and sends nothing"
    )
    for name, text in (("password", "one secret"), ("password_again", "another")):
        box = browser.find_element("name", name)
        box.send_keys(text)
        assert browser.execute_script("return arguments[0].matches(':focus')", box)
    box.send_keys(Keys.ENTER)
    until(browser, "document.querySelector('[role=alert]')")
    assert browser.find_element("css selector", ".plan"), "the plan is shown with it"
    for name in ("password", "password_again"):
        assert browser.find_element("name", name).get_attribute("value") == ""
        browser.find_element("name", name).send_keys("one secret")
    wide = browser.execute_script("return document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"the plan is {wide} pixels too wide"
    browser.find_element("name", "password").send_keys(Keys.ENTER)
    until(browser, "document.title.startsWith('Security')")
    assert browser.current_url == f"{base}/ui/security?did=add_user"
    link = browser.find_element("css selector", "[aria-label='Remove: by-hand']")
    assert browser.execute_script("return arguments[0].tabIndex", link) == 0
    link.send_keys(Keys.ENTER)
    until(browser, "document.title.startsWith('Remove user by-hand')")
    browser.find_element("css selector", "button.main").send_keys(Keys.ENTER)
    until(browser, "document.querySelector('.plan')")
    browser.find_element("css selector", "button.grave").send_keys(Keys.ENTER)
    until(browser, "document.title.startsWith('Security')")
    assert not browser.find_elements("css selector", "[aria-label='Remove: by-hand']")
    assert not [one["message"] for one in browser.get_log("browser") if "secret" in one["message"]]


def test_the_overview_follows_the_cluster(browser: Any, base: str) -> None:
    looks(browser, WIDE)
    browser.get(base + "/")
    host = browser.execute_script("return document.querySelector('#event-rows').textContent")
    assert "created" in host
    until(browser, "!document.querySelector('.live').hidden")
    browser.execute_script("document.querySelector('#event-rows').innerHTML = ''")
    until(browser, "document.querySelector('#event-rows').textContent.includes('created')")


@pytest.mark.skipif(not SHOTS, reason="DASHBOARD_SHOTS names no folder")
def test_pictures(browser: Any, base: str, cluster: Cluster) -> None:
    over = threading.Event()
    load = threading.Thread(target=write_until, args=(over, cluster.servers))
    load.start()
    try:
        with antiphon.connect(cluster.servers) as db:
            with contextlib.suppress(UnknownTopicError):
                db.delete_topic("by-hand2")  # of another test
            db.run(db.aio.administer(AlterUser("ann", credentials("secret"))))
            db.run(db.aio.administer(AlterQuota(Quota("ann", producer_byte_rate=1e6, connections=20.0))))
        cluster.nodes[2].kill()
        cluster.nodes[2].start()
        pictures(browser, base)
    finally:
        over.set()
        load.join()


def write_until(over: threading.Event, servers: str) -> None:
    """Flights and aircraft, at a rate that rises and falls."""
    with antiphon.connect(servers) as db:
        flights, aircraft = db.topic("flights"), db.table("aircraft")
        for turn in itertools.count():
            if over.wait(0.02 + 0.03 * abs(math.sin(turn / 60))):
                return
            with contextlib.suppress(AntiphonError):
                told = {"flight": f"UA{turn}", "from": "EWR", "to": "IAH", "delay_min": turn % 40 - 5}
                flights.append(
                    json.dumps(told).encode(), key=f"N{14000 + turn % 90}".encode(), shard=turn % 2
                )
                if turn % 3 == 0:
                    aircraft.put(f"N{14000 + turn % 90}", json.dumps({"at": "IAH", "flight": turn}))


NEW_TOPIC = {"name": "arrivals", "shards": 3, "config": "retention.ms=604800000"}
NEW_ENTRY = {"principal": "User:ann", "operation": "read", "name": "flights"}
NEW_LIMITS = {"user": "ann", "producer_byte_rate": 2_000_000, "request_percentage": 25}


class Picture(NamedTuple):
    """One picture of docs/dashboard.md. `is_plan`: of what the page's form comes to."""

    name: str
    path: str
    size: tuple[int, int]
    scheme: str = "light"
    wait_s: float = 0.5
    is_plan: bool = False


PICTURES = (
    Picture("overview", "/", (1280, 980), "dark", 30.0),
    Picture("records", "/ui/topics/flights/records?shard=1", (1280, 700)),
    Picture("phone", "/", PHONE, wait_s=8.0),
    Picture("topic", f"/ui/actions/create_topic?{urlencode(NEW_TOPIC)}", (900, 800)),
    Picture("plan", f"/ui/actions/create_topic?{urlencode(NEW_TOPIC)}", (1280, 520), is_plan=True),
    Picture("user", "/ui/actions/add_user?user=bob", (900, 540), is_plan=True),
    Picture("entry", f"/ui/actions/add_access_entry?{urlencode(NEW_ENTRY)}", (900, 860), "dark"),
    Picture("quota", f"/ui/actions/set_quota?{urlencode(NEW_LIMITS)}", (900, 420), is_plan=True),
)


def pictures(browser: Any, base: str) -> None:
    from PIL import Image
    from selenium.webdriver.common.keys import Keys

    for one in PICTURES:
        looks(browser, one.size, one.scheme)
        browser.get(base + one.path)
        if one.is_plan:
            browser.find_element("css selector", "button.main").send_keys(Keys.ENTER)
            until(browser, "document.querySelector('.plan')")
        time.sleep(one.wait_s)
        Image.open(BytesIO(browser.get_screenshot_as_png())).quantize(128).save(
            Path(SHOTS) / f"dashboard-{one.name}.png", optimize=True
        )
