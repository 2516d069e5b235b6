"""Mutants of the recipes, and in what they rely on: who holds a lock, what is fenced off, what is counted and done."""

from typing import Any, Final

from antiphon.recipes.counter import AsyncCounter
from antiphon.recipes.lock import AsyncLock
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS, RESETS, only
from antiphon.table.evaluator import TableEvaluator

_WORK: Final[dict[str, Any]] = only(recipe_clients=5)

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
)
