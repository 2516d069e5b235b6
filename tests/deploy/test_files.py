"""Each file in `deploy/` is one that its tool takes, and they fit together."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from antiphon.node.config import load_config
from antiphon.security.exposure import refuse_believing, refuse_exposure
from antiphon.server.process import STOP_TIMEOUT_S
from tests.deploy.manifests import DEPLOY, KUBERNETES, container, kustomization, manifests, of_kind
from tests.packaging.environments import ROOT
from tests.pages.test_commands_on_pages import parse

CONFIGS = sorted(DEPLOY.glob("*/node.toml"))
VERSIONS = ("1.30", "1.34")
HAND_OVER_S = 20


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.parent.name)
def test_a_node_takes_the_configuration_and_is_not_open_to_others(file: Path) -> None:
    own = {"node_id": 1}
    config = load_config(file, own)
    assert config.node_id == 1
    assert config.voters == (0, 1, 2)
    refuse_exposure(config.listen_host, config.security)
    refuse_believing(len(config.nodes), config.security)
    assert config.dir.is_absolute()
    ports = {member.peer.rpartition(":")[2] for member in config.nodes}
    assert ports == {str(config.ports.peer)}
    assert "bootstrap" not in file.read_text(), "that is said at the first start"


def test_there_is_a_configuration_for_each_way() -> None:
    assert [file.parent.name for file in CONFIGS] == ["container", "kubernetes", "systemd"]


# -- systemd ----------------------------------------------------------------------------------------------------------


def unit() -> dict[str, list[str]]:
    """The settings of the unit's section [Service]; a name may stand there more than once."""
    text = (DEPLOY / "systemd" / "antiphon.service").read_text()
    found: dict[str, list[str]] = {}
    for line in text.partition("[Service]")[2].partition("[Install]")[0].splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "antiphon.service").read_text()
    file = tmp_path / "antiphon.service"
    file.write_text(text.replace("/opt/antiphon/bin/antiphon", "/bin/true"))  # it must be there
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    file.write_text(text.replace("/opt/antiphon/bin/antiphon", "/bin/true") + "\n[Service]\nNoSuchThing=1\n")
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert "NoSuchThing" in done.stderr, "what it does not know is told"
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(file)]
    file.write_text(text)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]


def test_the_unit_gives_a_node_the_time_that_it_needs() -> None:
    service = unit()
    (stop,) = service["ExecStop"]
    assert f"--timeout {HAND_OVER_S}" in stop
    (whole,) = service["TimeoutStopSec"]
    assert int(whole) >= 2 * HAND_OVER_S + STOP_TIMEOUT_S
    assert service["Restart"] == ["on-failure"]
    assert int(service["LimitNOFILE"][0]) >= 100_000
    assert service["User"] == ["antiphon"]
    for name in (
        "NoNewPrivileges",
        "ProtectHome",
        "PrivateTmp",
        "ProtectKernelModules",
        "RestrictNamespaces",
    ):
        assert service[name] == ["true"], name
    assert service["ProtectSystem"] == ["strict"]
    config = load_config(DEPLOY / "systemd" / "node.toml", {"node_id": 0})
    assert str(config.dir) == f"/var/lib/{service['StateDirectory'][0]}"


def test_its_commands_are_there() -> None:
    service = unit()
    start = service["ExecStart"][0].removeprefix("/opt/antiphon/bin/antiphon ")
    assert parse(start).endswith("node start")
    script = shlex.split(service["ExecStop"][0].removeprefix("-"))
    assert script[:2] == ["/bin/sh", "-c"]
    called = script[2].partition("/opt/antiphon/bin/antiphon ")[2].replace('"$ANTIPHON_NODE_ID"', "1")
    assert parse(called).endswith("node hand-over")


@pytest.mark.parametrize("folder", ["systemd", "container"])
def test_environment_files(folder: str) -> None:
    text = (DEPLOY / folder / "antiphon.env").read_text()
    reader = configparser.ConfigParser(interpolation=None)
    reader.optionxform = str  # type: ignore[method-assign, assignment]
    reader.read_string(f"[env]\n{text}")
    found = dict(reader["env"])
    assert found["ANTIPHON_NODE_ID"] == "0"
    assert found["ANTIPHON_PASSWORD_FILE"].endswith("admin.password")
    assert "ANTIPHON_PASSWORD" not in found, "no secret stands there"
    assert all("export" not in name for name in found)


# -- container ----------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile, each with its words."""
    text = (DEPLOY / "container" / "Containerfile").read_text()
    lines = re.sub(
        r"\\\n\s*", " ", "\n".join(x for x in text.splitlines() if not x.startswith("#"))
    ).splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines if line.strip()]


def test_the_image_has_two_stages_and_no_root() -> None:
    found = instructions()
    assert [name for name, _ in found].count("FROM") == 2
    last = found[max(at for at, (name, _) in enumerate(found) if name == "FROM") :]
    words = dict(last)
    user = words["USER"].split(":")[0]
    assert int(user) > 0
    assert of_kind("StatefulSet")["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(user)
    names = [name for name, _ in last]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert words["STOPSIGNAL"] == "SIGTERM"
    assert "healthcheck.py" in words["HEALTHCHECK"]
    known = {
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "LABEL",
        "ENV",
        "USER",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
    }
    assert {name for name, _ in found} <= known | {"ENTRYPOINT", "CMD"}


def test_what_it_copies_is_there() -> None:
    copied = [
        words.split()[:-1] for name, words in instructions() if name == "COPY" and "--from" not in words
    ]
    assert all((ROOT / source).exists() for sources in copied for source in sources)
    project = (ROOT / "pyproject.toml").read_text()
    for name in re.findall(r'(?m)^(?:readme|license-files) = \[?"([^"]+)"', project):
        assert any(name in sources for sources in copied), f"{name} is needed to build the wheel"


def test_the_constraints_are_read_from_the_lock() -> None:
    (run,) = [words for name, words in instructions() if name == "RUN" and "constraints.txt" in words]
    pattern = run.partition("grep -oE '")[2].partition("'")[0]
    found = subprocess.run(
        ["grep", "-oE", pattern, ROOT / "requirements.lock"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    pins = [
        line for line in (ROOT / "requirements.lock").read_text().splitlines() if re.match(r"[a-z0-9]", line)
    ]
    assert len(found) == len(pins)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==\S+", one) for one in found)


# -- Kubernetes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_manifests(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="`make setup` installs kubernetes-validate")
    for one in manifests():
        validate.validate(one, version, strict=True)
    broken = of_kind("PodDisruptionBudget")
    broken["spec"]["maxUnavailible"] = 1
    with pytest.raises(validate.ValidationError, match="maxUnavailible"):
        validate.validate(broken, version, strict=True)


def test_the_kustomization_has_all_files() -> None:
    named = {*kustomization()["resources"], "kustomization.yaml"}
    assert {file.name for file in KUBERNETES.glob("*.yaml")} == named
    (config,) = kustomization()["configMapGenerator"]
    assert config["files"] == ["node.toml"]
    (image,) = kustomization()["images"]
    assert image["name"] == container()["image"]


def test_labels_names_and_ports_belong_together() -> None:
    stateful, config = of_kind("StatefulSet"), load_config(KUBERNETES / "node.toml", {"node_id": 0})
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    selectors = [
        stateful["spec"]["selector"]["matchLabels"],
        of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of_kind("Service")["spec"]["selector"],
        of_kind("Service", "antiphon-bootstrap")["spec"]["selector"],
    ]
    assert all(selector == labels for selector in selectors)
    headless = of_kind("Service")
    assert stateful["spec"]["serviceName"] == headless["metadata"]["name"]
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True
    ports = {one["name"]: one["containerPort"] for one in container()["ports"]}
    assert ports == {
        name: getattr(config.ports, name) for name in ("native", "kafka", "oxia", "http", "peer")
    }
    for service in (headless, of_kind("Service", "antiphon-bootstrap")):
        assert all(one["port"] == ports[one["targetPort"]] for one in service["spec"]["ports"])
    founders = [f"{stateful['metadata']['name']}-{n}.{headless['metadata']['name']}" for n in range(3)]
    assert [member.native.rpartition(":")[0] for member in config.nodes] == founders
    assert stateful["spec"]["replicas"] == len(founders)


def test_a_pod_is_stopped_when_its_node_has_handed_over_and_the_last_one_is_in_step() -> None:
    spec = of_kind("StatefulSet")["spec"]
    pod: dict[str, Any] = spec["template"]["spec"]
    node = container()
    assert node["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert node["livenessProbe"]["httpGet"]["path"] == node["startupProbe"]["httpGet"]["path"] == "/livez"
    script = node["lifecycle"]["preStop"]["exec"]["command"]
    assert script[:2] == ["/bin/sh", "-c"]
    called = script[2].partition("/opt/antiphon/bin/antiphon ")[2].replace('"${POD_NAME##*-}"', "1")
    assert parse(called).endswith("node hand-over")
    assert f"--timeout {HAND_OVER_S}" in called
    assert pod["terminationGracePeriodSeconds"] >= 2 * HAND_OVER_S + STOP_TIMEOUT_S
    assert of_kind("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert spec["podManagementPolicy"] == "Parallel"
    assert parse(" ".join(node["args"])).endswith("node start")


def test_what_is_mounted_is_what_the_configuration_names() -> None:
    pod = of_kind("StatefulSet")["spec"]
    volumes = {one["name"] for one in pod["template"]["spec"]["volumes"]}
    volumes |= {one["metadata"]["name"] for one in pod["volumeClaimTemplates"]}
    mounts = {one["name"]: one["mountPath"] for one in container()["volumeMounts"]}
    assert set(mounts) == volumes
    config = load_config(KUBERNETES / "node.toml", {"node_id": 0})
    assert str(config.dir).startswith(mounts["data"] + "/")
    security = config.security
    files = [security.first_user, security.peer_key]
    for tls in (security.tls, security.peer_tls):
        files += [tls.certificate, tls.key, tls.authority]
    assert all(file.startswith(mounts["secrets"] + "/") for file in files)
    assert container()["securityContext"]["readOnlyRootFilesystem"] is True
