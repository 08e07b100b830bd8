"""The counters of a block (invariants 6 and 10), and whether a collection frees_stripes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.formats.header import Entry, GroupHeader
from nos_ec.core.gc.reclaim import LiveEntry, Victim, account_block, frees_stripes, stripes_needed
from nos_ec.core.geometry import CHUNK_SIZE_MAX, Geometry
from nos_ec.core.ids import BlockId
from nos_ec.core.packing.splits import SPLIT_BYTES

pytestmark = pytest.mark.invariant(6)

NEVER = CHUNK_SIZE_MAX
"""A price for which no object is split."""
GEOMETRY = Geometry()
STRIPE = GEOMETRY.stripe_size


def _header(first_stripe: int, stripe_count: int, lengths: list[int]) -> GroupHeader:
    offset = 4096
    entries = []
    for number, length in enumerate(lengths):
        entries.append(Entry(bytes([first_stripe, number] * 8), 1, offset, length, 0))
        offset += length
    return GroupHeader(
        BlockId(bytes(16)),
        first_stripe,
        stripe_count,
        1,
        0,
        GEOMETRY.chunk_size,
        8,
        3,
        sum(lengths),
        tuple(entries),
        0,
        0,
        0,
    )


def _live(header: GroupHeader, number: int) -> LiveEntry:
    entry = header.entries[number]
    return LiveEntry(entry.key_md5, 1, header.first_stripe * STRIPE + entry.offset, entry.length)


def test_rows_decide_what_lives_and_headers_what_was_written() -> None:
    header = _header(0, 2, [1000, 2000, 3000])
    account = account_block(GEOMETRY, 2, [header], [], [_live(header, 1)])
    assert (account.live_bytes, account.dead_bytes, account.live_objects) == (2000, 4000, 1)
    assert account.overhead_bytes == 2 * STRIPE - 6000
    assert account.unconfirmed == ()


def test_a_damaged_stripe_is_dead_but_not_what_rows_say_lives_in_it() -> None:
    header = _header(0, 1, [1000])
    lives_in_damage = LiveEntry(bytes(16), 1, STRIPE + 8192, 500)
    account = account_block(GEOMETRY, 2, [header], [1], [_live(header, 0), lives_in_damage])
    assert account.live_bytes == 1500
    assert account.dead_bytes == STRIPE - 500
    assert account.unconfirmed == (lives_in_damage,)


def test_another_version_or_place_does_not_confirm() -> None:
    header = _header(0, 1, [1000])
    good = _live(header, 0)
    wrong = [
        LiveEntry(good.key_md5, 2, good.offset, good.length),
        LiveEntry(good.key_md5, 1, good.offset + 1, good.length),
        LiveEntry(good.key_md5, 1, good.offset, good.length - 1),
        LiveEntry(b"x" * 16, 1, good.offset, good.length),
    ]
    for entry in wrong:
        assert account_block(GEOMETRY, 1, [header], [], [entry]).unconfirmed == (entry,)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 100_000), max_size=8), st.booleans()), max_size=20),
    st.randoms(use_true_random=False),
)
def test_the_counters_always_balance(groups: list[tuple[list[int], bool]], rng: object) -> None:
    headers, damaged, live = [], [], []
    for index, (lengths, readable) in enumerate(groups):
        header = _header(index, 1, lengths)
        live += [_live(header, number) for number in range(0, len(lengths), 2)]
        if readable:
            headers.append(header)
        else:
            damaged.append(index)
    account = account_block(GEOMETRY, len(groups), headers, damaged, live)
    assert account.live_bytes + account.dead_bytes + account.overhead_bytes == len(groups) * STRIPE
    assert min(account.live_bytes, account.dead_bytes, account.overhead_bytes) >= 0
    assert account.live_bytes == sum(entry.length for entry in live)


def test_a_collection_pays_when_it_gives_stripes_back() -> None:
    assert not frees_stripes([])
    assert not frees_stripes([Victim(1, 0.2)]), "one stripe would become one stripe"
    assert frees_stripes([Victim(1, 0.2)] * 2)
    assert not frees_stripes([Victim(32, 32)])
    assert frees_stripes([Victim(1, 0.1)] * 10)
    assert not frees_stripes([Victim(1, 0.9)] * 9), "9 stripes would become 9 stripes"


def test_what_survivors_need() -> None:
    assert stripes_needed(GEOMETRY, [], 0, NEVER) == 0
    few = stripes_needed(GEOMETRY, [1000] * 20, 20 * 40, NEVER)
    assert 0.01 < few < 0.05, "others may use what they leave of their chunk"
    whole_chunk = stripes_needed(GEOMETRY, [GEOMETRY.chunk_size] * 80, 0, NEVER)
    assert 9.8 < whole_chunk < 10.2
    lonely = [GEOMETRY.chunk_size * 2 // 3] * 80
    assert 9.8 < stripes_needed(GEOMETRY, lonely, 0, NEVER) < 10.2, "a chunk holds one of these: the rest stays empty"
    assert 6.6 < stripes_needed(GEOMETRY, lonely, 0, SPLIT_BYTES) < 6.8, "objects that are split fill it"
    tiny = stripes_needed(GEOMETRY, [20] * 8000, 8000 * 80, NEVER)
    assert 1.0 < tiny < 1.3, "most of it are headers and names, which cannot be won back either"
