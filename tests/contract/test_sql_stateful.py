"""The metadata state machine on SQLite, each run on a fresh file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.ports.metadata import Metadata
from tests.contract.suites.metadata_machine import MetadataMachine

pytestmark = [pytest.mark.invariant(number) for number in (2, 3, 6)]


def test_metadata_agrees_with_a_dict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template, used = tmp_path / "template.db", tmp_path / "meta.db"
    migrate(f"sqlite:///{template}")

    def fresh() -> Metadata:
        for left in tmp_path.glob("meta.db*"):
            left.unlink()
        shutil.copy(template, used)
        return open_metadata(f"sqlite:///{used}")

    class Machine(MetadataMachine):
        new_metadata = staticmethod(fresh)

    modest = settings(
        max_examples=40, stateful_step_count=25, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Machine, settings=modest)
