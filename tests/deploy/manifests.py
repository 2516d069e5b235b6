"""What stands in `deploy/kubernetes`, as one list of objects."""

from pathlib import Path
from typing import Any, Final

import yaml

from tests.packaging.environments import ROOT

DEPLOY: Final = ROOT / "deploy"
KUBERNETES: Final = DEPLOY / "kubernetes"

Manifest = dict[str, Any]


def kustomization() -> Manifest:
    """kustomization.yaml."""
    return _read(KUBERNETES / "kustomization.yaml")[0]


def manifests() -> list[Manifest]:
    """The objects of all files that kustomization.yaml names."""
    return [one for name in kustomization()["resources"] for one in _read(KUBERNETES / name)]


def of_kind(kind: str, name: str = "antiphon") -> Manifest:
    """The object of a kind and name."""
    (found,) = [one for one in manifests() if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def container() -> Manifest:
    """The container of a node."""
    (found,) = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def _read(file: Path) -> list[Manifest]:
    return [one for one in yaml.safe_load_all(file.read_text()) if one]
