"""Files of access control lists: what is read, what is written, and what is refused with a reason."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidRequestError
from antiphon.model.access import CLUSTER_NAME, Acl, Operation, Pattern, Permission, Resource
from antiphon.tools.acl_file import read_acls, to_toml

WHOLE = """
[[acl]]
principal = "User:alice"
name = "orders"
operation = ["read", "write"]

[[acl]]
principal = "User:*"
resource = "group"
name = "reports-"
pattern = "prefixed"
permission = "deny"
host = "10.0.0.7"
operation = "read"

[[acl]]
principal = "User:audit"
resource = "cluster"
operation = "cluster_action"
"""


def file_of(tmp_path: Path, text: str) -> Path:
    made = tmp_path / "acls.toml"
    made.write_text(text)
    return made


def test_a_file_says_all_that_an_entry_can_say(tmp_path: Path) -> None:
    assert read_acls(file_of(tmp_path, WHOLE)) == [
        Acl("User:alice", Resource.TOPIC, "orders", Operation.READ),
        Acl("User:alice", Resource.TOPIC, "orders", Operation.WRITE),
        Acl(
            "User:*",
            Resource.GROUP,
            "reports-",
            Operation.READ,
            Pattern.PREFIXED,
            Permission.DENY,
            "10.0.0.7",
        ),
        Acl("User:audit", Resource.CLUSTER, CLUSTER_NAME, Operation.CLUSTER_ACTION),
    ]
    assert read_acls(file_of(tmp_path, "")) == []
    assert len(read_acls(file_of(tmp_path, WHOLE + WHOLE))) == 4, "each entry once"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
ENTRIES = st.builds(
    Acl, TEXTS, st.sampled_from([one for one in Resource if one is not Resource.CLUSTER]), TEXTS,
    st.sampled_from(Operation), st.sampled_from(Pattern), st.sampled_from(Permission), TEXTS,
)  # fmt: skip
NUMBERS = itertools.count()


@given(st.lists(ENTRIES, max_size=8))
def test_what_is_written_reads_the_same(tmp_path_factory: pytest.TempPathFactory, acls: list[Acl]) -> None:
    made = tmp_path_factory.getbasetemp() / f"acls-{next(NUMBERS)}.toml"
    made.write_text(to_toml(acls), encoding="utf-8", newline="")
    assert set(read_acls(made)) == set(acls)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[acl", "is not TOML"),
        ('[[acl]]\nprincipal = "User:a"\nname = "t"', "missing required field `operation`"),
        ('[[acl]]\nprincipal = "User:a"\nname = "t"\noperation = "fly"', "fly"),
        ('[[acl]]\nprincipal = "User:a"\nname = "t"\noperation = "read"\nhsot = "*"', "hsot"),
        ('[[acl]]\nprincipal = "User:a"\noperation = "read"', "entry 1: the resource has no name"),
        ('[[acl]]\nprincipal = "User:a"\nname = "t"\noperation = []', "entry 1 has no operation"),
        ('[[acls]]\nprincipal = "User:a"', "acls"),
        ("acl = 7", "acl"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        read_acls(file_of(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot read"):
        read_acls(tmp_path / "none.toml")
    (tmp_path / "acls.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequestError, match="is not TOML"):
        read_acls(tmp_path / "acls.toml")
