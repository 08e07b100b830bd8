"""A store whose metadata is on a real SQL server, opened by each role with the rights of deploy/sql/grants.sh. The rest
of it is in a folder, or on Ceph with the keys of docs/CEPH.md."""

from __future__ import annotations

import re
import subprocess
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.pool import NullPool

from nos_ec.adapters.sql.objects.journal import JournalWriter
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.settings import Settings, load_settings

SCRIPT = Path(__file__).parents[3] / "deploy" / "sql" / "grants.sh"
ROLES = ("front", "reader", "producer", "consumer", "gc", "api", "console", "operator")
CONFIG = """
[store]
root = "store"
[geometry]
chunk_size = 16384
stripes_per_block = 8
[reaper]
landing_grace_ms = 0
[gc]
policy = "threshold"
block_grace_ms = 0
reserve_bytes = 0
[landing]
mode = "store"
[log]
partitions = 3
[s3]
notification_topics = "changes"
"""

TableRights = dict[str, dict[str, frozenset[str]]]
"""{table: {verb: columns}}; no columns means all of them."""
Rights = dict[str, TableRights]
"""The same by role."""


def granted(statements: str) -> Rights:
    """The rights that the script's output gives."""
    rights: Rights = defaultdict(lambda: defaultdict(dict))
    for verbs, table, role in re.findall(r"^GRANT (.+) ON `[^`]+`\.`(\w+)` TO 'nos-ec-(\w+)'@", statements, re.M):
        for verb, columns in re.findall(r"([A-Z]+)(?: \(([^)]*)\))?", verbs):
            rights[role][table][verb] = frozenset(columns.split(", ")) if columns else frozenset()
    return rights


def used(statement: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """(verb, table, columns that an UPDATE sets) of a statement that changes rows."""
    plain = " ".join(statement.split())
    if match := re.match(r"INSERT INTO (\w+)", plain):
        yield "INSERT", match[1], frozenset()
    elif match := re.match(r"DELETE FROM (\w+)", plain):
        yield "DELETE", match[1], frozenset()
    elif plain.startswith("UPDATE "):
        tables, _, rest = plain.removeprefix("UPDATE ").partition(" SET ")
        (table,) = set(re.findall(r"(?:^|STRAIGHT_JOIN )(\w+)(?: FORCE INDEX \(\w+\))?$", tables))
        # No assigned expression has a comparison outside of CASE and WHERE.
        assigned = re.sub(r"CASE .*? END", "", rest.partition(" WHERE ")[0])
        yield "UPDATE", table, frozenset(re.findall(r"(?:^|[ .(])(\w+)=", assigned))


class RoleStore:
    """The store. `changes`: the rights to change rows that each role has used so far in this process.

    keyrings: the folder of each role's key of Ceph, if the store is there.
    """

    def __init__(self, url: str, folder: Path, config: str = CONFIG, keyrings: Path | None = None) -> None:
        self._root_url = make_url(url)
        self._keyrings = keyrings
        self.folder = folder
        self.database = f"roles_{uuid.uuid4().hex[:8]}"
        self.config = folder / "nos-ec.toml"
        self.config.write_text(config)
        self.changes: Rights = defaultdict(lambda: defaultdict(dict))
        self.rights: Rights = {}
        for role in ("admin", *ROLES):
            (folder / role).mkdir()

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make database, users and store as deploy/README.md says. All of it is removed at the end."""
        self.sql(f"CREATE DATABASE {self.database}")
        try:
            self.sql(*self.script("admin").splitlines())
            initialise(self.settings("admin"))
            said = self.script()
            self.rights = granted(said)
            self.sql(*said.splitlines())
            self._permit_json_table()
            event.listen(Engine, "before_cursor_execute", self._note)
            with self._journal_noted():
                yield
        finally:
            if event.contains(Engine, "before_cursor_execute", self._note):
                event.remove(Engine, "before_cursor_execute", self._note)
            users = ", ".join(f"'nos-ec-{role}'@'%'" for role in ("admin", *ROLES))
            self.sql(f"DROP DATABASE {self.database}", f"DROP USER IF EXISTS {users}")

    @contextmanager
    def _journal_noted(self) -> Iterator[None]:
        """Note rows of the journal too, which the driver's own cursor inserts."""
        insert = JournalWriter._insert

        def noted(writer: JournalWriter, connection: Connection, *args: Any) -> None:
            insert(writer, connection, *args)
            self._note(connection, None, "INSERT INTO journal")

        with mock.patch.object(JournalWriter, "_insert", noted):
            yield

    def _permit_json_table(self) -> None:
        """MySQL 8.0.12, the one that deploy/dev installs, refuses JSON_TABLE to users without SELECT on everything.
        Rights to change rows are not affected."""
        if self.try_sql("reader", "SELECT * FROM JSON_TABLE('[]', '$[*]' COLUMNS (a INT PATH '$')) AS j"):
            self.sql(*(f"GRANT SELECT ON *.* TO 'nos-ec-{role}'@'%'" for role in ROLES))

    def script(self, *roles: str) -> str:
        """The output of grants.sh for this server and database."""
        at = f"{self._root_url.host}:{self._root_url.port}"
        command = [str(SCRIPT), "-d", self.database, "-s", at, str(self.folder), *roles]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def sql(self, *statements: str) -> None:
        """Run statements as the server's administrator."""
        engine = create_engine(self._root_url, poolclass=NullPool)
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def environment(self, role: str) -> dict[str, str]:
        """The variables that make a process act as a role."""
        found = {"NOS_EC_STORE__METADATA_URL_FILE": str(self.folder / role / "metadata-url")}
        if self._keyrings is not None:
            user = f"client.nos-ec-{role}"
            found |= {
                "NOS_EC_CEPH__USER": user,
                "NOS_EC_CEPH__KEYRING_FILE": str(self._keyrings / f"{user}.keyring"),
            }
        return found

    def settings(self, role: str) -> Settings:
        """The settings of a process that acts as a role."""
        return load_settings(self.config, self.environment(role))

    def open(self, role: str) -> System:
        """The store, opened as a role."""
        return open_system(self.settings(role))

    @contextmanager
    def opened(self) -> Iterator[dict[str, System]]:
        """The store, opened as every role."""
        with ExitStack() as stack:
            yield {role: stack.enter_context(self.open(role)) for role in ROLES}

    def try_sql(self, role: str, statement: str) -> int:
        """Run a statement as a role, in a transaction that is rolled back. Returns the server's error code; 0: done."""
        engine = create_engine(self.settings(role).store.url(), poolclass=NullPool)
        with engine.connect() as connection:
            try:
                connection.execute(text(statement))
            except Exception as error:
                code: int = getattr(error, "orig", error).args[0]
                return code
            finally:
                connection.rollback()
        return 0

    def _note(self, connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        role = str(connection.engine.url.username).removeprefix("nos-ec-")
        for verb, table, columns in used(statement):
            rights = self.changes[role][table]
            rights[verb] = rights.get(verb, frozenset()) | columns
