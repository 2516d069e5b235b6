"""Sort keys of the hierarchical order, against Oxia's rules as its documentation and its clients know them."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.records.key_order import DEPTH_MAX, is_text, key_of, sort_key

text = st.text(st.sampled_from("ab/é\x00"), max_size=8).map(str.encode)


def by_depth(key: bytes) -> tuple[int, list[int]]:
    """What a key is compared by, written down a second time."""
    slashes = key.count(b"/") - (1 if key[-2:] == b"//" else 0)
    return min(slashes, DEPTH_MAX), [256 if one == ord("/") else one for one in key]


def test_keys_of_one_depth_stand_together() -> None:
    keys = [
        b"/a/x/1", b"/b/x", b"/a//", b"/a/y", b"/b/", b"//", b"/a/x", b"/a/", b"/b", b"b/a", b"/", b"b", b"/a", b"", b"a",
    ]  # fmt: skip
    assert sorted(keys, key=sort_key) == [
        b"", b"a", b"b", b"b/a", b"/", b"/a", b"/b", b"//", b"/a/", b"/a/x", b"/a/y", b"/a//", b"/b/", b"/b/x", b"/a/x/1",
    ]  # fmt: skip


def test_sort_keys_as_bytes() -> None:
    """They are on disks: another form needs another mark in stores (`table.key_order`)."""
    for key, expected in (
        (b"", b"\x00\x00"),
        (b"abc", b"\x00\x00abc"),
        (b"/a/b", b"\x00\x02\xffa\xffb"),
        (b"/a//", b"\x00\x02\xffa\xff\xff"),
        (b"//", b"\x00\x01\xff\xff"),
        (b"/", b"\x00\x01\xff"),
        (b"/" * 40_000 + b"a", b"\x7f\xff" + b"\xff" * 40_000 + b"a"),
    ):
        assert sort_key(key) == expected


@given(text, text)
def test_sort_keys_compare_as_the_rules_say_and_lead_back(one: bytes, other: bytes) -> None:
    assert (sort_key(one) < sort_key(other)) == (by_depth(one) < by_depth(other))
    assert key_of(sort_key(one)) == one
    assert is_text(one)


@given(text.filter(lambda key: b"/" not in key), text.filter(lambda key: b"/" not in key))
def test_the_children_of_a_key_are_between_one_slash_and_two(parent: bytes, child: bytes) -> None:
    path = b"/" + parent
    start, end = sort_key(path + b"/"), sort_key(path + b"//")
    assert start <= sort_key(path + b"/" + child) < end
    assert not start <= sort_key(path) < end
    assert not start <= sort_key(path + b"/" + child + b"/x") < end


def test_what_is_no_text_has_no_place() -> None:
    assert not is_text(b"\xff")
    assert not is_text(b"a\x80/")
    assert is_text("ä/é".encode())
