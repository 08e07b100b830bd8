"""Which modules `nos-ec` loads for a command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from nos_ec.cli.app import MODULES, all_commands, commands

ALL = [command for names in MODULES.values() for command in names]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["put", "a/b", "file"], MODULES["commands.objects"]),
        (["--config", "gc", "trash", "list"], MODULES["commands.trash"]),
        (["--config=ls", "gc", "run"], MODULES["commands.services"]),
        (["--config", "a", "--config=b", "bench"], MODULES["measure.bench"]),
        (["--cell", "ls", "--config=b", "gc", "run"], MODULES["commands.services"]),
        ([], ALL),
        (["--help"], ALL),
        (["--help", "put"], ALL),
        (["-h", "put"], ALL),
        (["--config", "put"], ALL),
        (["--config"], ALL),
        (["--version"], ()),
        (["--version", "put"], ALL),
        (["putt"], ALL),
        (["", "put"], ALL),
    ],
)
def test_only_the_commands_of_its_module_are_loaded_if_that_is_clear(
    arguments: list[str], found: Sequence[str]
) -> None:
    assert sorted(commands(arguments).commands) == sorted(found)
    assert sorted(all_commands().commands) == sorted(ALL)


@pytest.mark.parametrize(("command", "module"), [("put", "commands.objects"), ("consumer", "commands.services")])
def test_a_command_does_not_load_the_modules_of_others(command: str, module: str) -> None:
    program = f"import sys; from nos_ec.cli.app import commands; commands(['{command}']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert f"nos_ec.cli.{module}" in loaded
    assert not loaded & {
        "nos_ec.cli.measure.bench",
        "nos_ec.cli.measure.simulate",
        "nos_ec.cli.commands.demo",
        "nos_ec.bench.pipeline",
        "nos_ec.composition.operator_side",
        "alembic",
        "botocore",
        "confluent_kafka",
        "cryptography",
        "fastapi",
        "pymysql",
        "uvicorn",
    }


def test_the_version_is_printed_without_loading_what_opens_a_store() -> None:
    program = "import sys; from nos_ec.cli.app import run; run(['--version']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    version, loaded = done.stdout.splitlines()
    assert version.startswith("nos-ec ")
    assert not set(loaded.split()) & {"nos_ec.composition.wiring", "nos_ec.settings", "sqlalchemy"}
