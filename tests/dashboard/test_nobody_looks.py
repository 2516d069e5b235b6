"""A node that nobody looks at loads no libraries for pages, and runs no line of theirs; and so does one after a look."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2]
OF_PAGES = ("starlette", "jinja2", "markupsafe", "antiphon.http.pages.app", "antiphon.http.pages.site")
IDLE_S = 12.0  # of virtual time: three times as long as an open page waits before it asks again

PROGRAM = f"""
import asyncio, json, sys, threading
from collections import Counter

from tests.dashboard.looking import page, served
from tests.node.in_process import in_virtual_time

calls = Counter()

def seen(frame, event, _arg):
    name = frame.f_code.co_filename
    if event == "call" and ("/http/pages/" in name or "/http/api/" in name or "/starlette/" in name or "/jinja2/" in name):
        calls[name.rpartition("/")[2] + ":" + frame.f_code.co_name] += 1

def loaded():
    return [name for name in {OF_PAGES!r} if name in sys.modules]

async def idle():
    calls.clear()
    sys.setprofile(seen)
    threading.setprofile(seen)
    await asyncio.sleep({IDLE_S})
    sys.setprofile(None)
    threading.setprofile(None)
    return dict(calls)

@in_virtual_time
async def looked():
    async with served(1) as nodes:
        told = {{"loaded": loaded()}}
        await page("/healthz")
        await page("/metrics")
        told["idle"] = await idle()
        told["still_loaded"] = loaded()
        sys.setprofile(seen)
        told["status"] = (await page("/")).status
        sys.setprofile(None)
        told["look"] = sum(calls.values())
        told["after_a_look"] = loaded()
        told["idle_again"] = await idle()
        print(json.dumps(told))

looked()
"""


def test_a_node_does_nothing_for_pages_while_nobody_looks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=SOURCE,
        env={**os.environ, "PYTHONPATH": f"{SOURCE / 'src'}:{SOURCE}"},
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (told["loaded"], told["still_loaded"]) == ([], []), (
        "neither starting nor metrics load anything of pages"
    )
    assert Counter(told["idle"]) == Counter()
    assert (told["status"], set(told["after_a_look"])) == (200, set(OF_PAGES))
    assert told["look"] > 100, "what is counted is what pages do"
    assert Counter(told["idle_again"]) == Counter(), "nothing goes on when the reader is gone"
