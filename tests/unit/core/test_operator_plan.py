"""Plans are read back as they were written; whatever is not whole is refused."""

from __future__ import annotations

import pytest

from nos_ec.core.errors import InvalidInput
from nos_ec.core.formats.operator_plan import Action, Cost, PlanHead, Step, plan_lines, read_head, read_steps

HEAD = PlanHead("store", 1_700_000_000_000, "nos-ec check")
STEPS = [
    Step(Action.RECOUNT_BLOCK, {"block": "00"}, "block-counters", {"row": [1, 2]}, {"stripes": 3}, Cost(read=4096)),
    Step(Action.WAIT, {"object": "b/täg\n"}, "not-waiting"),
    Step(Action.QUARANTINE_COPY, {"landing": "ff"}, "copy-without-owner", {"bytes": 5}, {}, Cost(free=5)),
]


def lines() -> list[bytes]:
    return list(plan_lines(HEAD, STEPS))


def test_a_plan_is_read_back() -> None:
    assert read_head(lines()[0]) == HEAD
    assert list(read_steps(lines())) == list(enumerate(STEPS, 1))
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines())


def test_a_plan_without_steps() -> None:
    assert list(read_steps(plan_lines(HEAD, []))) == []


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_a_plan_that_was_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(InvalidInput, match="cut off"):
        list(read_steps(lines()[:cut]))


def test_a_plan_that_was_edited_is_refused() -> None:
    whole = lines()
    for number in range(len(whole) - 1):
        for changed in (
            [*whole[:number], *whole[number + 1 :]],
            [*whole[:number], whole[number].replace(b"store", b"other").replace(b"00", b"01"), *whole[number + 1 :]],
            [*whole[: number + 1], whole[number], *whole[number + 1 :]],
        ):
            if changed != whole:
                with pytest.raises(InvalidInput, match=r"changed|invalid"):
                    list(read_steps(changed))
    with pytest.raises(InvalidInput, match="follows"):
        list(read_steps([*whole, whole[-1]]))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"text\n", "not a plan"),
        (b'{"nos_ec_plan": 2, "store_id": "s", "made_ms": 1, "made_by": "m"}\n', "version 2"),
        (b'{"nos_ec_plan": 1}\n', "store_id"),
    ],
)
def test_other_files_are_refused(line: bytes, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_head(line)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"recount-block"', b'"drop-everything"'),
        (b'"read":4096', b'"read":-1'),
        (b'"target":{"block":"00"}', b'"target":7'),
        (b"{", b""),
    ],
)
def test_steps_that_are_not_known_are_refused(old: bytes, new: bytes) -> None:
    changed = lines()
    assert old in changed[1]
    changed[1] = changed[1].replace(old, new, 1)
    with pytest.raises(InvalidInput, match="line 2 of the plan"):
        list(read_steps(changed))
