"""What happened, drawn on a time axis."""

import re

from antiphon.http.pages import time_line
from antiphon.model.events import Event, EventKind
from antiphon.model.requests import CreateTopic
from tests.dashboard.looking import page, served
from tests.node.in_process import eventually, in_virtual_time

NOW_MS = 1_800_000_000_000


def event(seconds_ago: float, kind: EventKind = EventKind.LEADER, subject: str = "flights/0") -> Event:
    return Event(NOW_MS - int(seconds_ago * 1000), kind, subject, "went on")


def marks(found: time_line.TimeLine) -> dict[str, list[tuple[str, str, int]]]:
    return {lane.name: [(one.place, one.looks, one.total) for one in lane.marks] for lane in found.lanes}


def test_events_stand_where_they_were_on_the_axis_of_their_sort() -> None:
    found = time_line.drawn(
        [
            event(3_600, EventKind.NODE_DOWN, "node 1"),
            event(2_700, EventKind.NODE_DOWN, "node 1"),
            event(1_800, EventKind.COORDINATOR, "node 2"),
            event(900, EventKind.MEMBERS),
            event(60, EventKind.TOPIC_MADE, "new"),
            event(0),
        ],
        "1h",
        NOW_MS,
    )
    assert marks(found) == {
        "Nodes": [("25.00%", "bad", 1)],
        "Coordinator": [("50.00%", "accent", 1)],
        "Leaders": [("100.00%", "accent", 1)],
        "Members": [("75.00%", "second", 1)],
    }
    assert (found.total, found.span) == (4, "1h"), (
        "what is older than the axis, or of another sort, is left out"
    )
    assert [place for place, _ in found.ticks] == ["0.00%", "25.00%", "50.00%", "75.00%", "100.00%"]
    assert [clock for _, clock in found.ticks] == ["07:00", "07:15", "07:30", "07:45", "08:00"]
    assert time_line.drawn([], "1d", NOW_MS).ticks[0][1] == "01-14 08:00"


def test_what_happens_at_once_is_one_mark_of_the_gravest_look() -> None:
    some = [event(30), event(29, EventKind.NO_LEADER, "flights/1"), *[event(28)] * 7]
    (mark,) = time_line.drawn(some, "1h", NOW_MS).lanes[2].marks
    assert (mark.looks, mark.total, mark.at_ms) == ("bad", 9, NOW_MS - 29_000)
    assert mark.says.split("\n")[1] == "07:59:31 flights/1 went on"
    assert mark.says.endswith("and 3 more")
    many = [event(number % 3_600) for number in range(50_000)]
    assert sum(len(lane.marks) for lane in time_line.drawn(many, "1h", NOW_MS).lanes) <= time_line.STEPS
    quiet = time_line.drawn([event(9_000)], "nonsense", NOW_MS)
    assert (quiet.span, quiet.total, quiet.last) == ("1h", 0, event(9_000))


@in_virtual_time
async def test_a_fail_over_is_drawn_on_the_overview_without_javascript() -> None:
    async with served() as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("flights", shards=3))
        leader = next(shard.leader for shard in topic.shards if shard.leader != 0)
        nodes.kill(leader)
        await eventually(
            lambda: all(s.leader not in {leader, -1} for s in nodes.nodes[0].gateway.topic("flights").shards)
        )
        text = (await page("/?span=10m&q=%22%3E")).text
        svg = text[text.index('<svg class="time-line"') :].partition("</svg>")[0]
        titles = re.findall(r'class="mark (\w+)" cx="[\d.]+%"[^>]*><title>([^<]+)<', svg)
        assert [looks for looks, says in titles if f"node {leader} is not heard of any more" in says] == [
            "bad"
        ]
        assert any("flights/" in says for _, says in titles)
        assert 'aria-current="true">10m<' in text
        assert 'href="/?q=%22%3E&amp;span=1h"' in text, "other filters stay"
        assert not re.search(r"\sstyle=", text)
