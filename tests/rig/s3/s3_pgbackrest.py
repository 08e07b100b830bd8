"""A PostgreSQL server that pgBackRest backs up into a bucket."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.rig.s3.s3_clients import Gateways, client_program
from tests.rig.waiting import until

_CAPABILITIES = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
_AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *_CAPABILITIES)
AS_USER = _AS_NOBODY if os.geteuid() == 0 else ()
"""PostgreSQL refuses to run as root. As nobody, it may still write into root's folders."""
CONFIG = """
listen_addresses = ''
unix_socket_directories = '{sockets}'
archive_mode = on
archive_command = 'pgbackrest --no-config archive-push %p'
autovacuum = off
"""
"""Only statements of the test write to its log."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server whose data is in a folder `data`. sockets: a folder with a short path, for its socket."""

    gateways: Gateways
    bucket: str
    data: Path
    sockets: Path

    @property
    def environment(self) -> dict[str, str]:
        """The configuration of psql and of pgBackRest, which needs no file. Its files of less than 2 MiB are gathered
        in bundles, and it uploads what is larger than 5 MiB in parts."""
        access, folder = self.gateways.write, self.gateways.folder
        options = {
            "STANZA": "main",
            "PG1_PATH": self.data,
            "PG1_SOCKET_PATH": self.sockets,
            "PG1_USER": "postgres",
            "REPO1_TYPE": "s3",
            "REPO1_PATH": "/repository",
            "REPO1_BUNDLE": "y",
            "REPO1_RETENTION_FULL": 1,
            "REPO1_RETENTION_DIFF": 1,
            "REPO1_S3_BUCKET": self.bucket,
            "REPO1_S3_ENDPOINT": urlsplit(access.url).netloc,
            "REPO1_S3_URI_STYLE": "path",
            "REPO1_S3_REGION": "us-east-1",
            "REPO1_S3_KEY": access.access_key,
            "REPO1_S3_KEY_SECRET": access.secret,
            "REPO1_STORAGE_CA_FILE": access.certificate,
            "COMPRESS_TYPE": "none",
            "PROCESS_MAX": 2,
            "START_FAST": "y",
            "LOCK_PATH": folder / "locks",
            "SPOOL_PATH": folder / "spool",
            "LOG_LEVEL_FILE": "off",
        }
        own = {f"PGBACKREST_{name}": str(value) for name, value in options.items()}
        return own | {"PGHOST": str(self.sockets), "PGUSER": "postgres", "PGDATABASE": "postgres"}

    def run(self, *command: str | Path) -> str:
        """Run a command as a user that is not root. Returns what it wrote. Raises AssertionError when it fails."""
        return self.gateways.run(*AS_USER, *command, more=self.environment).decode()

    def pgbackrest(self, *arguments: str) -> str:
        """Run one of its commands."""
        return self.run("pgbackrest", "--no-config", *arguments)

    def sql(self, *statements: str) -> str:
        """Run them, each in its own transaction. Returns the rows, with | between columns."""
        commands = [f"--command={statement}" for statement in statements]
        return self.run("psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", *commands)

    def drop_templates(self) -> None:
        """Drop the databases from which others are created: two thirds of the files of a new server."""
        templates = ("template0", "template1")
        self.sql("UPDATE pg_database SET datistemplate = false", *(f"DROP DATABASE {name}" for name in templates))

    def create(self) -> None:
        """Create its folder. Segments of its log have 1 MiB, not 16."""
        options = (
            "--username=postgres",
            "--auth=trust",
            "--locale=C",
            "--encoding=UTF8",
            "--wal-segsize=1",
            "--no-sync",
        )
        self.run(client_program("postgres") / "initdb", *options, "--pgdata", self.data)
        with (self.data / "postgresql.conf").open("a") as config:
            config.write(CONFIG.format(sockets=self.sockets))

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Let it run. It has recovered what was restored. Afterwards it ends as by a crash."""
        control = (client_program("postgres") / "pg_ctl", "--pgdata", self.data)
        try:
            self.run(*control, "--log", self.gateways.folder / "postgres.log", "start")
            until(lambda: self.sql("SELECT pg_is_in_recovery()") == "f\n", "the recovery ended")
            yield
        finally:
            self.run(*control, "--mode=immediate", "stop")


@contextmanager
def sockets() -> Iterator[Path]:
    """Yield a folder for sockets, whose paths may have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="nos-ec-postgres-") as folder:
        yield Path(folder)
