"""The statements of the SQL store are of the SQL that MySQL, MariaDB and Vitess have in common.

Vitess parses every statement itself.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Executable, Float, create_engine
from sqlalchemy.sql.compiler import SQLCompiler

import nos_ec.adapters.sql
from nos_ec.adapters.sql.blocks.block_rows import CANDIDATES, LOCK_IDS
from nos_ec.adapters.sql.driver.engine import _MYSQL_SETUP
from nos_ec.adapters.sql.tables.schema import BLOCKS

LACKING = re.compile(r"\bFOR (UPDATE|SHARE) OF\b|\bAS (DOUBLE|FLOAT)\b|\bTEMPORARY\b|\bANALYZE\b|\bLOCK TABLES\b")
"""What the parser of Vitess, or an old MySQL server below it, does not accept."""
FOLDER = Path(nos_ec.adapters.sql.__file__).parent


def compiled(statement: Executable) -> SQLCompiler:
    """Compile it for a new MySQL, whose dialect uses the most of MySQL's own syntax."""
    dialect = create_engine("mysql+pymysql://user@host/database").dialect
    dialect.server_version_info = (8, 4, 6)
    dialect.supports_for_update_of = True  # type: ignore[attr-defined]  # as it is after connecting
    made = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    assert isinstance(made, SQLCompiler)
    return made


def statements() -> Iterator[tuple[str, Executable]]:
    """Yield every statement that a module defines, with its name."""
    for module in pkgutil.walk_packages(nos_ec.adapters.sql.__path__, "nos_ec.adapters.sql."):
        if ".migrations" not in module.name:
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, Executable):
                    yield f"{module.name}.{name}", value


def test_no_statement_uses_what_vitess_lacks() -> None:
    found = dict(statements())
    assert len(found) > 100
    for name, statement in found.items():
        assert LACKING.search(str(compiled(statement))) is None, name


def test_no_statement_takes_a_float() -> None:
    """For a float, Vitess writes CAST(... AS DOUBLE), which MySQL before 8.0.17 lacks."""
    for name, statement in statements():
        assert not [bind for bind in compiled(statement).binds.values() if isinstance(bind.type, Float)], name


def test_what_vitess_lacks_is_recognised() -> None:
    locks_of = LOCK_IDS.with_for_update(of=BLOCKS)
    assert LACKING.search(str(compiled(locks_of))) is not None


def test_a_ratio_is_passed_as_a_decimal() -> None:
    made = compiled(CANDIDATES.whole)
    processed = made._bind_processors["ratio_min"]
    assert str(processed(0.25)) == "0.25"  # type: ignore[operator]
    assert str(processed(1)) == "1.0"  # type: ignore[operator]


def test_statements_that_functions_build_name_no_table_to_lock() -> None:
    for path in FOLDER.rglob("*.py"):
        assert re.search(r"with_for_update\([^)]*\bof=", path.read_text()) is None, path


def test_sessions_do_not_change_how_quotes_are_read() -> None:
    """Vitess would refuse ANSI_QUOTES."""
    assert "ANSI" not in _MYSQL_SETUP
