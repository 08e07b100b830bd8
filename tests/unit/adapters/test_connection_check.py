"""Trying one thing after another: limits, failures, what is not tried, and which failure counts most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nos_ec.adapters.local import connection_check as local_trial
from nos_ec.composition.connection_check import Check, NotTried, Outcome, Result, try_all, worst
from nos_ec.core.errors import Blocklisted, ConfigError, Corrupt, NosError, NoSpace, Transient


def failing(error: BaseException) -> Callable[[], str]:
    def run() -> str:
        raise error

    return run


def outcomes(*checks: Check) -> list[tuple[str, Result, str]]:
    return [(found.name, found.result, found.detail) for found in try_all(checks)]


def test_all_are_tried_even_when_one_fails() -> None:
    assert outcomes(
        Check("a", 1000, failing(ConfigError("wrong"))),
        Check("b", 1000, lambda: "fine"),
        Check("c", 1000, lambda: "never", ("b", "a")),
        Check("d", 1000, failing(NotTried("not now"))),
        Check("e", 1000, lambda: "never", ("d", "c")),
        Check("f", 1000, lambda: "fine, too", ("b",)),
    ) == [
        ("a", Result.FAILED, "wrong"),
        ("b", Result.OK, "fine"),
        ("c", Result.NOT_TRIED, "needs: a"),
        ("d", Result.NOT_TRIED, "not now"),
        ("e", Result.NOT_TRIED, "needs: d, c"),
        ("f", Result.OK, "fine, too"),
    ]


def test_a_check_that_hangs_is_left_behind() -> None:
    go_on = threading.Event()
    began_s = time.monotonic()
    hung, fine = try_all([Check("hangs", 200, lambda: str(go_on.wait(60))), Check("b", 60_000, lambda: "fine")])
    assert time.monotonic() - began_s < 50
    go_on.set()
    assert (hung.result, hung.left_behind, type(hung.error)) == (Result.FAILED, True, Transient)
    assert hung.detail.startswith("no answer within 0.2 s; check that the server runs")
    assert hung.took_ms >= 200
    assert (fine.result, fine.left_behind) == (Result.OK, False)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (
            PermissionError(13, "Permission denied", "/srv/nos"),
            ConfigError,
            "/srv/nos: Permission denied; give the user",
        ),
        (OSError(5, "Input/output error", "/srv/nos"), Transient, "/srv/nos: Input/output error; check that its disk"),
    ],
)
def test_errors_of_the_operating_system_are_no_bugs(error: OSError, kind: type[NosError], says: str) -> None:
    (found,) = try_all([Check("folder", 1000, failing(error))])
    assert type(found.error) is kind
    assert found.detail.startswith(says)


def test_a_folder_is_named_and_not_the_file_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder / "tmp123"))

    monkeypatch.setattr(local_trial, "probe_folder", denied)
    with pytest.raises(PermissionError) as error:
        local_trial.try_folder(tmp_path / "not" / "there")
    assert error.value.filename == str(tmp_path)


def test_a_bug_is_reported_and_the_rest_is_tried() -> None:
    bug, fine = try_all([Check("a", 1000, failing(KeyError("x"))), Check("b", 1000, lambda: "fine")])
    assert (bug.result, bug.error, fine.result) == (Result.FAILED, None, Result.OK)
    assert "a bug: KeyError('x')" in bug.detail


def test_the_worst_failure() -> None:
    def failed(error: NosError | None) -> Outcome:
        return Outcome("x", Result.FAILED, str(error), 0, error)

    in_order = [None, Corrupt("c"), ConfigError("w"), Blocklisted("b"), NoSpace("n"), Transient("t")]
    for position, error in enumerate(in_order):
        rest = [failed(one) for one in in_order[position:]]
        for found in (worst(rest), worst(reversed(rest))):
            assert found is not None
            assert found.error is error
    first, second = failed(Transient("first")), failed(Transient("second"))
    assert worst([first, second]) is first
    assert worst([Outcome("x", Result.OK, "", 0), Outcome("y", Result.NOT_TRIED, "", 0)]) is None
