"""A table made from one JSON parameter, for joins. It makes the number of statements independent of the number of rows.

`JsonRows` describes the columns; `dump` makes the parameter. The table is `JSON_TABLE` on MySQL 8 and MariaDB 10.6+ and
`json_each` on SQLite. Ids are passed as hexadecimal text. See docs/adr/0016.

In a SELECT that locks, the table is a derived one, whose rows are not locked, because MySQL 8.0.12 refuses to lock a
JSON_TABLE. FOR UPDATE OF would serve as well, but MariaDB and Vitess do not have it. The same MySQL turns a JSON null
into the text `null`, so "no id" is passed as empty text, and integers cannot be null. It also cuts a BIGINT column of a
JSON_TABLE to 32 bits, so integers are read as DECIMAL and cast. All of this was seen on a real 8.0.12; newer versions
do not have these faults.

A statement that locks goes from the JSON table to the rows, and finds each by its key: `looked_up`, UpdateListed and
DeleteListed make MySQL and MariaDB do so. If they assume that a table has few rows, they would rather read all of it.
Such a statement would wait for every row that another transaction has locked, and deadlock with that transaction
(tests/rig/sql/sql_races.py). SQLite would rather go through all rows that have the same value in the first column of an
index, and compare each with the whole JSON table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Delete, LargeBinary, Select, Table, Text, Update, bindparam, cast, column, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import Join, TableValuedAlias

_VARCHAR_BYTES_MAX = 2048


class _JsonFunction(FunctionElement[Any]):
    """The base class of one subclass for each shape, because SQLAlchemy's statement cache compares classes."""

    inherit_cache = True
    shape: Sequence[tuple[str, int]] = ()


@compiles(_JsonFunction, "sqlite")
def _json_each(element: _JsonFunction, compiler: Any, **options: Any) -> str:
    columns = ", ".join(f"json_extract(value, '$[{i}]') AS {name}" for i, (name, _) in enumerate(element.shape))
    return f"(SELECT {columns} FROM json_each({compiler.process(element.clauses, **options)}))"  # noqa: S608 - our own names


@compiles(Join, "sqlite")
def _join(element: Join, compiler: Any, **options: Any) -> str:
    """Compile a join. If it begins with a JSON table, it starts from the rows of that table: CROSS JOIN keeps the order
    (documentation of SQLite: "Manual Control Of Query Plans Using CROSS JOIN")."""
    text: str = compiler.visit_join(element, **options)
    left = element.left
    if isinstance(left, TableValuedAlias) and isinstance(left.element, _JsonFunction):
        return text.replace(" JOIN ", " CROSS JOIN ", 1) if not element.isouter else text
    return text


@compiles(_JsonFunction, "mysql")
@compiles(_JsonFunction, "mariadb")
def _json_table(element: _JsonFunction, compiler: Any, **options: Any) -> str:
    columns = ", ".join(
        f"{name} {_type_of(bytes_max)} PATH '$[{i}]'" for i, (name, bytes_max) in enumerate(element.shape)
    )
    table = f"JSON_TABLE({compiler.process(element.clauses, **options)}, '$[*]' COLUMNS ({columns}))"
    locks = getattr(compiler.stack[-1]["selectable"], "_for_update_arg", None) is not None
    return f"(SELECT * FROM {table} AS listed)" if locks else table  # noqa: S608 - our own names


def _type_of(bytes_max: int) -> str:
    """Return the column type for an integer (0), or for the hexadecimal text of `bytes_max` bytes. A row has room for
    few long VARCHARs, but for any number of TEXTs, which cost more. Without the ASCII character set, the column would
    get the database's, and UNHEX cannot read ucs2 or utf16."""
    if not bytes_max:
        return "DECIMAL(20,0)"
    kind = f"VARCHAR({2 * bytes_max})" if bytes_max <= _VARCHAR_BYTES_MAX else "TEXT"
    return f"{kind} CHARSET ascii"


class JsonRows:
    """A table of rows that are bound to one parameter. For each column, the number is its size in bytes, or 0 for an
    integer. Values of the `optional` columns may be None."""

    def __init__(self, parameter: str, *, optional: Sequence[str] = (), **columns: int) -> None:
        self.parameter = parameter
        self._sizes = columns
        self._optional = optional
        self._ids_at = [at for at, size in enumerate(columns.values()) if size]
        shape = tuple(columns.items())
        function = type(f"_{parameter}_json", (_JsonFunction,), {"shape": shape, "inherit_cache": True})
        types = [column(name, Text if size else BigInteger) for name, size in shape]
        self.table: TableValuedAlias = function(bindparam(parameter, type_=Text)).table_valued(*types, name=parameter)

    def __getitem__(self, name: str) -> ColumnElement[Any]:
        """Return the column as an expression: an integer, or the bytes that its hexadecimal text encodes."""
        plain: ColumnElement[Any] = self.table.c[name]
        if not self._sizes[name]:
            return cast(plain, BigInteger)
        return func.unhex(func.nullif(plain, "") if name in self._optional else plain, type_=LargeBinary)

    def missing(self, name: str) -> ColumnElement[bool]:
        """Return a condition that is true where the optional column has no id."""
        assert name in self._optional, f"{name} is not optional"
        return self.table.c[name] == ""

    def dump(self, rows: Iterable[Sequence[int | bytes | None]]) -> dict[str, str]:
        """Return the parameter for these rows, each in column order. Only optional columns may hold None."""
        given: list[list[int | bytes | str | None]] = [list(row) for row in rows]
        for at in self._ids_at:
            for row in given:
                value = row[at]
                row[at] = value.hex() if isinstance(value, bytes) else ""
        return {self.parameter: msgspec.json.encode(given).decode()}


def looked_up(query: Select[Any], table: Table, index: str = "PRIMARY", *, then: Table | None = None) -> Select[Any]:
    """Return the query, which joins a JSON table with `table`, with hints: look up the rows of `table` one by one in
    this unique index, and the rows of `then`, which is joined with `table`, by their primary key."""
    for dialect in ("mysql", "mariadb"):
        hinted = query.with_hint(table, _by(index), dialect)
        if then is not None:
            hinted = hinted.with_hint(then, _by("PRIMARY"), dialect)
        query = hinted.prefix_with("STRAIGHT_JOIN", dialect=dialect)
    return query


class UpdateListed(Update):
    """An UPDATE of rows whose primary key is listed in a JSON table, or in rows of another table whose primary key is
    listed. In the WHERE, the JSON table comes before that other table."""

    inherit_cache = True


class DeleteListed(Delete):
    """A DELETE of rows whose primary key, or its first column, is listed as for UpdateListed."""

    inherit_cache = True


@compiles(UpdateListed, "mysql")
@compiles(UpdateListed, "mariadb")
def _update_listed(element: UpdateListed, compiler: Any, **options: Any) -> str:
    return _straight(compiler.visit_update(element, **options), element, "UPDATE", " SET ")


@compiles(DeleteListed, "mysql")
@compiles(DeleteListed, "mariadb")
def _delete_listed(element: DeleteListed, compiler: Any, **options: Any) -> str:
    return _straight(compiler.visit_delete(element, **options), element, "USING", " WHERE ")


def _straight(statement: str, element: Update | Delete, before: str, after: str) -> str:
    """Return the statement with `table, listed, others` changed to a join that starts from the listed rows, continues
    with the other tables, and ends with `table`."""
    table = str(element.table)
    start, found, rest = statement.partition(f"{before} {table}, ")
    listed, ends, rest = rest.partition(after)
    assert found, f"the statement does not list rows of {table}: {statement}"
    assert ends, f"the statement has no{after.rstrip()}: {statement}"
    froms = re.fullmatch(r"(JSON_TABLE.*\) AS \w+)((?:, \w+)*)", listed, re.DOTALL)
    assert froms, f"the listed rows do not come first: {statement}"
    joined = "".join(f" STRAIGHT_JOIN {name} {_by('PRIMARY')}" for name in (*froms[2].split(", ")[1:], table))
    return f"{start}{before} {froms[1]}{joined}{ends}{rest}"


def _by(index: str) -> str:
    return f"FORCE INDEX ({index})"
