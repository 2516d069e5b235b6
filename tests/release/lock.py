"""What `requirements.lock` says: packages with their hashes, and who needs whom."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS: Final = "antiphon"
_PIN: Final = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))? \\$")
_VIA: Final = re.compile(r"^    #(?: via|  ) +(?P<name>[a-z0-9-]+)")


class Locked(NamedTuple):
    """One version of a package. `marker` says on which Pythons and systems; `needed_by` has the packages that ask for it."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    needed_by: tuple[str, ...]


def read_lock(text: str) -> list[Locked]:
    """The packages of a lock file, in its order."""
    found: list[Locked] = []
    for line in text.splitlines():
        if pin := _PIN.match(line):
            found.append(Locked(pin["name"], pin["version"], pin["marker"] or "", (), ()))
        elif line.startswith("    --hash=sha256:"):
            one = line.partition("sha256:")[2].split()[0]
            found[-1] = found[-1]._replace(hashes=(*found[-1].hashes, one))
        elif via := _VIA.match(line):
            found[-1] = found[-1]._replace(needed_by=(*found[-1].needed_by, via["name"]))
    return found


def scopes(
    locked: Iterable[Locked], project: Mapping[str, object], not_for_users: Iterable[str]
) -> dict[str, str]:
    """For each package `required` (a base installation), `optional` (an extra for users) or `excluded` (our own work)."""
    base, extras = project["dependencies"], project["optional-dependencies"]
    assert isinstance(base, list)
    assert isinstance(extras, dict)
    for_users = [text for extra, needs in extras.items() if extra not in set(not_for_users) for text in needs]
    needs: dict[str, set[str]] = {}
    for one in locked:
        for other in one.needed_by:
            needs.setdefault(other, set()).add(one.name)
    required, optional = _closure(base, needs), _closure(for_users, needs)
    return {
        one.name: "required" if one.name in required else "optional" if one.name in optional else "excluded"
        for one in locked
    }  # fmt: skip


def _closure(asked: Iterable[str], needs: Mapping[str, set[str]]) -> set[str]:
    waiting = [str(canonicalize_name(Requirement(text).name)) for text in asked]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += needs.get(name, ())
    return found
