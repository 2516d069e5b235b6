"""What a Kafka listener is to do wrong because a test says so. Nodes that nobody may hurt never import this.

A test tells it as JSON, in `faults.json` of the node (`node/injected_faults.py`):

    {"failures": [{"api": "Produce", "code": 6, "times": 3, "tally": "/tmp/one"}],    answered with an error instead
     "hang_ups": [{"api": "Fetch", "times": 1, "tally": "/tmp/two"}],                 carried out; the answer breaks off
     "delays": {"orders": 250},                       ms by which Produce and Fetch of a topic are answered later
     "caps": {"Fetch": 11}}                           the highest version of an API that is served
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from antiphon.errors import InvalidRequestError
from antiphon.kafka.apis import APIS, ServedApi
from antiphon.kafka.error_names import code_named
from antiphon.kafka.faulty_answers import can_fail

TIMES_MAX: Final = 1_000_000
DELAY_MS_MAX: Final = 600_000
FAILING: Final = {
    *("Produce", "Fetch", "ShareFetch", "Metadata"),
    *(api.name for api in APIS.values() if can_fail(api)),
}
_BY_NAME: Final = {api.name: api for api in APIS.values()}


class FaultCount:
    """How many of `times` requests were hit, counted in a file that all nodes of a cluster share.

    A hit is a byte at the end of the file. The system puts each at an offset of its own, and says at which; so no two
    nodes, and no node that is started again, take the same one.
    """

    def __init__(self, path: Path, times: int) -> None:
        self._path = path
        self._times = times
        self._is_over = False

    def take(self) -> bool:
        """Take one of the hits that are left."""
        if self._is_over:
            return False
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, b".")
            taken = os.lseek(file, 0, os.SEEK_CUR)
        finally:
            os.close(file)
        self._is_over = taken >= self._times
        return taken <= self._times


class Rule:
    """Requests of one API that are hit. `code`: the error that they are answered with; 0: they are hung up on."""

    def __init__(self, told: Mapping[str, Any], *, fails: bool) -> None:
        api_named(told.get("api", ""))
        self.api: str = told["api"]
        if fails and self.api not in FAILING:
            raise InvalidRequestError(
                f"{self.api} has no answer to be failed with; these have: {', '.join(sorted(FAILING))}"
            )
        self.code = code_named(told.get("code", 0)) if fails else 0
        times = told.get("times", 1)
        if not isinstance(times, int) or not 1 <= times <= TIMES_MAX:
            raise InvalidRequestError(f"a fault happens 1 to {TIMES_MAX} times, not {times!r}")
        self.tally = FaultCount(Path(told["tally"]), times)


class ListenerFaults:
    """What is wrong right now. Raises InvalidRequestError for what makes no sense.

    Attributes:
        failures, hang_ups: by API, in the order in which they are used up.
        delays_s: by topic.
        apis: what is served, by key.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.failures = _by_api([Rule(one, fails=True) for one in told.get("failures", ())])
        self.hang_ups = _by_api([Rule(one, fails=False) for one in told.get("hang_ups", ())])
        self.delays_s = {topic: _delay_s(topic, ms) for topic, ms in told.get("delays", {}).items()}
        caps = {name: _capped(name, version) for name, version in told.get("caps", {}).items()}
        self.apis = {**APIS, **{api.key: api for api in caps.values()}} if caps else APIS

    @property
    def hit_requests(self) -> bool:
        """May a request be hit? A lower version alone needs no look at each of them."""
        return bool(self.failures or self.hang_ups or self.delays_s)


def api_named(name: str) -> ServedApi:
    """An API that is served; raises InvalidRequestError that lists those there are."""
    if name not in _BY_NAME:
        raise InvalidRequestError(
            f"no API of Kafka's is called {name!r} here; there are {', '.join(_BY_NAME)}"
        )
    return _BY_NAME[name]


def _by_api(rules: list[Rule]) -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        found.setdefault(rule.api, []).append(rule)
    return found


def _delay_s(topic: str, ms: Any) -> float:
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 <= ms <= DELAY_MS_MAX:
        raise InvalidRequestError(
            f"answers about {topic!r} can come 0 to {DELAY_MS_MAX} ms later, not {ms!r}"
        )
    return ms / 1000


def _capped(name: str, version: Any) -> ServedApi:
    api = api_named(name)
    if not isinstance(version, int) or not api.min_version <= version <= api.max_version:
        raise InvalidRequestError(
            f"{name} is served in versions {api.min_version} to {api.max_version}, so its highest cannot be {version!r}"
        )
    return replace(api, max_version=version)
