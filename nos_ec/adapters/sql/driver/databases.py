"""Whole databases on a server, created for a temporary store and dropped with it."""

from __future__ import annotations

from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from nos_ec.adapters.sql.driver.engine import MYSQL_CONNECT_S, parse_url
from nos_ec.adapters.sql.driver.failures import translate
from nos_ec.core.errors import ConfigError

SCRATCH = "_scratch_"
"""Only databases whose names contain this may be dropped here."""


def scratch_url(url: str, tag: str) -> str:
    """Return the URL of a scratch database on the server of `url` (MySQL or MariaDB). Raises ConfigError for SQLite."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        raise ConfigError("a SQLite store is a file and has no server; name another file")
    return parsed.set(database=f"{parsed.database}{SCRATCH}{tag}").render_as_string(hide_password=False)


def create_database(url: str) -> None:
    """Create the database that the URL names. Raises ConfigError when it exists or the user may not create it, and
    Transient."""
    _administer(url, "CREATE DATABASE {} CHARACTER SET utf8mb4")


def drop_database(url: str) -> None:
    """Drop a scratch database. A missing one is not an error. Raises ConfigError, Transient."""
    if SCRATCH not in str(parse_url(url).database):
        raise ConfigError(f"{parse_url(url).database} is not a scratch database; drop it by hand if you mean to")
    _administer(url, "DROP DATABASE IF EXISTS {}")


def _administer(url: str, statement: str) -> None:
    parsed = parse_url(url)
    server = URL.create(
        parsed.drivername, parsed.username, parsed.password, parsed.host, parsed.port, query=parsed.query
    )
    engine = create_engine(server, poolclass=NullPool, connect_args={"connect_timeout": MYSQL_CONNECT_S})
    try:
        with engine.connect() as connection:
            connection.execute(text(statement.format(_quoted(connection, str(parsed.database)))))
    except DBAPIError as error:
        failure = translate(error, engine.url)
        if failure is None:
            raise ConfigError(
                f"database {parsed.database}: {error.orig}; give this user the right to create databases (Vitess has no"
                " scratch databases)"
            ) from error
        raise failure.error from error


def _quoted(connection: Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote_identifier(name).replace("%", "%%")
