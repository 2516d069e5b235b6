"""Oxia's Python client lists children, scans and removes them, in a namespace with Oxia's order of keys.

`oxia_python` runs this in the client's environment, beside the tests of the client's repository.
"""

from oxia.internal.oxia_container import OxiaContainer

import oxia

TREE = ("/f/LH441", "/f/LH441/seats", "/f/BA286", "/f/BA286/seats/1", "/gates", "/f", "f", "/f/")
CHILDREN = ["/f/", "/f/BA286", "/f/LH441"]


def test_children_are_listed_scanned_and_removed() -> None:
    with OxiaContainer() as server:
        client = oxia.Client(server.service_url())
        for key in TREE:
            client.put(key, "v " + key)
        assert client.list("/f/", "/f//") == CHILDREN
        assert [key for key, _, _ in client.range_scan("/f/", "/f//")] == CHILDREN
        assert client.list("/", "//") == ["/f", "/gates"]
        assert client.list("/f/LH441/", "/f/LH441//") == ["/f/LH441/seats"]
        client.delete_range("/f/", "/f//")
        assert client.list("/f/", "/f//") == []
        assert sorted(client.list("", "")) == sorted(set(TREE) - set(CHILDREN))
        client.close()


def test_children_of_several_shards() -> None:
    with OxiaContainer(shards=4) as server:
        client = oxia.Client(server.service_url())
        for key in TREE:
            client.put(key, "v " + key)
        assert sorted(client.list("/f/", "/f//")) == CHILDREN
        assert sorted(key for key, _, _ in client.range_scan("/f/", "/f//")) == CHILDREN
        client.close()


def test_the_key_next_to_another_one_is_of_its_depth() -> None:
    with OxiaContainer() as server:
        client = oxia.Client(server.service_url())
        for key in ("/a/1", "/a/1/deep", "/a/3", "/b"):
            client.put(key, key)
        for comparison, expected in (
            (oxia.ComparisonType.FLOOR, "/a/1"),
            (oxia.ComparisonType.LOWER, "/a/1"),
            (oxia.ComparisonType.CEILING, "/a/3"),
            (oxia.ComparisonType.HIGHER, "/a/3"),
        ):
            assert client.get("/a/2", comparison_type=comparison)[0] == expected
        assert client.get("/a/4", comparison_type=oxia.ComparisonType.HIGHER)[0] == "/a/1/deep"
        client.close()
