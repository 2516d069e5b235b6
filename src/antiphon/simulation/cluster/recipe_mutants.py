"""Mutants of the recipes, and in what they rely on: who holds a lock, what is fenced off, what is counted and done."""

from typing import Any, Final

from antiphon.client.watch import Watch
from antiphon.recipes.counter import AsyncCounter
from antiphon.recipes.lock import AsyncLock
from antiphon.recipes.registry import AsyncServiceRegistry
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS, RESETS, only
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.sessions import OpenSessions

_WORK: Final[dict[str, Any]] = only(recipe_clients=5)

_SERVE: Final[dict[str, Any]] = {
    "appenders": 0,
    "putters": 0,
    "operations_per_s": 200,
    "service_clients": 4,
}

RECIPE_MUTANTS: Final = (
    ClusterMutant(
        "recipes-stale-tokens-write",
        "a transaction is carried out whatever versions it checks",
        Edit(
            TableEvaluator,
            "_check",
            "if op.expected_version != (ABSENT if current is None else current[0]):",
            "if False:",
        ),
        options={**CUTS, **_WORK},
    ),
    ClusterMutant(
        "recipes-lock-is-taken-away",
        "whoever wants a lock puts its row, whether it is there or not",
        Edit(AsyncLock, "try_acquire", "expected_version=ABSENT", "expected_version=None"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "recipes-lock-of-anybody",
        "who finds a lock's row takes it for the own one, whose put had no answer",
        (
            Edit(AsyncLock, "_token_of_own", "row.session_id == self._session.id", "True"),
            Edit(AsyncLock, "_token_of_own", "row.value == self._value", "True"),
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "recipes-count-without-looking",
        "a counter is set to one more than was read, whatever it is by then",
        Edit(AsyncCounter, "add", "expected_version=expected", "expected_version=None"),
        options={**RESETS, **_WORK, "recipe_clients": 8},
    ),
    ClusterMutant(
        "services-without-a-session",
        "an instance is registered for good, and not as long as its session is there",
        (Edit(AsyncServiceRegistry, "register", ", session=session", ""),),
        options={**CALM, **_SERVE},
        quick=True,
    ),
    ClusterMutant(
        "services-of-any-moment",
        "who lists a service is told what a leader has, whether it leads still or not",
        (Edit(AsyncServiceRegistry, "instances", 'f"{service}0")', 'f"{service}0", consistency="leader")'),),
        options={**CUTS, **_SERVE},
    ),
    ClusterMutant(
        "services-end-with-another-session",
        "the end of a session takes all rows that were ever put under it, also those that are another session's by now",
        (
            Edit(
                OpenSessions,
                "ending",
                "if version is not None and version[0] == keys[key]:",
                "if version is not None:",
            ),
        ),
        options={**CALM, **_SERVE},
    ),
    ClusterMutant(
        "services-followers-miss-what-goes",
        "who follows a table does not hear of rows that go with their session",
        (
            Edit(
                Watch,
                "_changes",
                "in found:",
                "in (one for one in found if one.value is not None or one.session_id is None):",
            ),
        ),
        options={**CALM, **_SERVE},
    ),
)
