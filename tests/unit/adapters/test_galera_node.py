"""When a node of a Galera cluster may write, by what it sees (the rest runs on a real cluster in tests/real)."""

from __future__ import annotations

from zlib import crc32

import pytest

from nos_ec.adapters.sql.driver.galera import GaleraNode

ONE, TWO, THREE = (f"10.0.0.{number}:3306" for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("address", "members", "writing", "told"),
    [
        (ONE, [ONE, TWO, THREE], ONE, None),
        (ONE, [ONE, TWO], THREE, None),
        (ONE, [ONE], None, None),
        (TWO, [ONE, TWO, THREE], ONE, f"{ONE} writes to this store"),
        (ONE, [ONE, "AUTO", "AUTO"], None, None),
        ("AUTO", ["AUTO"], None, "set wsrep_node_incoming_address"),
        ("AUTO", ["AUTO", "AUTO", ONE], ONE, "set wsrep_node_incoming_address"),
        (ONE, [ONE, ONE, TWO], ONE, "set wsrep_node_incoming_address"),
        (ONE, [TWO, THREE], ONE, "set wsrep_node_incoming_address"),
        ("", [TWO], TWO, "set wsrep_node_incoming_address"),
    ],
    ids=[
        "it writes",
        "the one that wrote has left",
        "a new store",
        "another one writes",
        "others without an address cannot write",
        "without an address",
        "without an address, with others",
        "two with one address",
        "not a member",
        "an empty address",
    ],
)
def test_one_node_writes(address: str, members: list[str], writing: str | None, told: str | None) -> None:
    node = GaleraNode(address, members, 0 if writing is None else crc32(writing.encode()))
    why_not = node.refusal()
    assert (why_not is None) == (told is None)
    assert told is None or told in str(why_not)
    assert node.writes == (writing == address)
