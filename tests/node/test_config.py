"""node.toml: what is written is what is read, and what cannot work is refused with its reason."""

import tomllib
from pathlib import Path

import pytest

from antiphon.errors import InvalidRequestError, NewerFormatError
from antiphon.node.config import (
    CONFIG_FILE,
    Member,
    NodeConfig,
    Ports,
    check_config,
    load_config,
    save_config,
    split_address,
)
from antiphon.security.settings import Tls


def config(count: int = 3) -> NodeConfig:
    return NodeConfig(
        cluster_id='c"1\n\x7f', node_id=0, nodes=[Member(i, f"127.0.0.1:{7400 + i}") for i in range(count)]
    )


def test_a_config_survives_the_file(tmp_path: Path) -> None:
    written = config()
    written.ports = Ports(0, 9, -1, 0, peer=7500)
    written.security.tls = Tls("n.crt", "n.key", 'a"b.crt', "required")
    written.security.super_users = ["User:a", 'User:"b"']
    written.security.peer_key = "peer.key"  # who asks clients who they are asks nodes too
    save_config(written, tmp_path)
    written.dir = tmp_path.resolve()
    assert load_config(tmp_path) == written
    assert load_config(tmp_path / CONFIG_FILE) == written


def test_a_node_may_keep_its_data_elsewhere(tmp_path: Path) -> None:
    text = 'cluster_id="a"\nnode_id=0\nnodes=[{id=0, native="x:1"}]\ndir='
    file = tmp_path / CONFIG_FILE
    for given, found in (
        ("/var/lib/antiphon", Path("/var/lib/antiphon")),
        ("data", tmp_path.resolve() / "data"),
    ):
        file.write_text(f'{text}"{given}"')
        assert load_config(file).dir == found
    file.write_text(f"{text}7")
    with pytest.raises(InvalidRequestError, match=r"Expected `str`, got `int` - at `\$\.dir`"):
        load_config(file)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5_000,
        "a = " + "9" * 5_000,
        'cluster_id="a"\nnode_id=0\nnodes=[]\ndir="\\u0000"',
        "a = '\xff",
    ],
)
def test_bytes_that_are_no_settings_are_refused_by_the_file_s_name(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG_FILE).write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidRequestError, match=f"{CONFIG_FILE}.*(not TOML|no path)"):
        load_config(tmp_path)


def test_settings_of_one_node_go_before_those_of_a_file_that_several_share(tmp_path: Path) -> None:
    file = tmp_path / CONFIG_FILE
    file.write_text('cluster_id="a"\nadvertised_host="x"\nnodes=[{id=0, native="x:1"}]')
    found = load_config(file, {"node_id": 4, "advertised_host": "y"})
    assert (found.node_id, found.public_host) == (4, "y")
    with pytest.raises(InvalidRequestError, match="node_id"):
        load_config(file, {"node_id": -4})


def test_what_has_its_default_is_a_remark(tmp_path: Path) -> None:
    """So that a version that does not know a setting reads the file."""
    written = config()
    written.limits.topics = 7
    save_config(written, tmp_path)
    found = tomllib.loads((tmp_path / CONFIG_FILE).read_text())
    assert set(found) == {"cluster_id", "node_id", "format", "limits", "nodes"}
    assert found["limits"] == {"topics": 7}
    text = (tmp_path / CONFIG_FILE).read_text()
    assert "\n# [sessions]\n# timeout_min_ms = 1000\n" in text
    assert '\n# profile = "oxia"\n' in text


def test_founding_a_cluster_is_said_once_and_not_saved(tmp_path: Path) -> None:
    written = config()
    written.bootstrap = True
    save_config(written, tmp_path)
    assert not load_config(tmp_path).bootstrap


@pytest.mark.parametrize(("count", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (9, 3)])
def test_the_voters_are_an_odd_number_of_the_first(count: int, voters: int) -> None:
    assert config(count).voters == tuple(range(voters))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cluster_id = ", "not TOML"),
        ("node_id = 1", "cluster_id"),
        ('cluster_id="a"\nnode_id=0\nnodes=[]', "empty"),
        ('cluster_id="a"\nnode_id=-1\nnodes=[]', "node_id"),
        ('cluster_id="a"\nnode_id=0\nnodes=[{id=0, native="x"}]', "host:port"),
        ('cluster_id="a"\nnode_id=0\nnodes=[{id=0, native="x:1"},{id=0, native="x:2"}]', "twice"),
        ('cluster_id="a"\nnode_id=0\ncolour="red"\nnodes=[{id=0, native="x:1"}]', "colour"),
        ('cluster_id="a"\nnode_id=0\nflush="never"\nnodes=[{id=0, native="x:1"}]', "flush"),
        ('cluster_id="a"\nnode_id=0\nnodes=[{id=0, native="x:1"}]\n[timings]\ntick=200', "tick"),
        ('cluster_id="a"\nnode_id=0\nnodes=[{id=0, native="x:1"}]\n[security.tls]\nkey="k"', "certificate"),
        (
            'cluster_id="a"\nnode_id=0\nnodes=[{id=0, native="x:1"}]\n[security]\nsuper_users=["a"]',
            "principal",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / CONFIG_FILE).write_text(text)
    with pytest.raises(InvalidRequestError, match=f"{CONFIG_FILE}.*{says}"):
        load_config(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="No such file"):
        load_config(tmp_path / "nowhere")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_text("format = 2\nfield_of_tomorrow = 1\n")
    with pytest.raises(NewerFormatError):
        load_config(tmp_path)
    newer = config()
    newer.format = 9
    with pytest.raises(NewerFormatError):
        check_config(newer)


def test_addresses() -> None:
    assert split_address("localhost:1") == ("localhost", 1)
    assert split_address("[::1]:7400") == ("::1", 7400)
    for bad in ("", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:²"):
        with pytest.raises(InvalidRequestError):
            split_address(bad)
