"""Vitess for tests: finds the primary of its first keyspace, kills it, makes it hang, and replaces it; moves the tables
of a keyspace to another one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.rig.dev_servers import START_S_MAX, WHOLE, DevServer, ServerFailed

PRIMARY = "primary"
"""The `part` that is the MySQL server of the primary, with its vttablet."""
SHARD = "nos_ec/0"
TRIES_MAX, TRY_WAIT_S = 6, 5.0
COPY_S_MAX = 300.0


class VitessServer(DevServer):
    """Vitess, started by its script. Its parts are processes, such as vtgate and etcd, and PRIMARY."""

    def __init__(self, folder: Path, *, fast: bool = True, **environment: str) -> None:
        super().__init__("vitess", folder, fast=fast, **environment)
        self._asleep = ""

    def kill(self, part: str = WHOLE) -> None:
        """Kill a process; of the primary, the MySQL server and the vttablet."""
        if part != PRIMARY:
            super().kill(part)
            return
        number = self._primary()
        for process in (f"mysqld-{number}", f"vttablet-{number}"):
            super().kill(process)

    def put_to_sleep(self, part: str = WHOLE) -> None:
        """Make a process hang; of the primary, the MySQL server."""
        self._asleep = self._primary() if part == PRIMARY else ""
        super().put_to_sleep(f"mysqld-{self._asleep}" if part == PRIMARY else part)

    def wake(self, part: str = WHOLE) -> None:
        """Wake it. A primary that was replaced meanwhile is killed: its open commits wait for an acknowledgement of
        replicas that follow another primary, for ever."""
        process = f"mysqld-{self._asleep}" if part == PRIMARY else part
        super().wake(process)
        if part == PRIMARY and self._primary() != self._asleep:
            with suppress(ProcessLookupError):
                super().kill(process)

    def replace_primary(self) -> None:
        """Make another MySQL server the primary, as for maintenance. Vitess refuses that while it repairs something."""
        for again in range(TRIES_MAX):
            try:
                self.control("PlannedReparentShard", SHARD)
                return
            except ServerFailed:
                if again == TRIES_MAX - 1:
                    raise
                time.sleep(TRY_WAIT_S)

    def control(self, *arguments: str) -> str:
        """Run vtctldclient. Raises ServerFailed."""
        command = [*self._command("run"), "vtctldclient", *arguments]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=START_S_MAX)
        if ran.returncode != 0:
            raise ServerFailed(f"{self.name}: {' '.join(arguments)}: {ran.stderr.strip()}")
        return ran.stdout

    def url_of(self, keyspace: str) -> str:
        """The URL of another keyspace, which the variable NOS_EC_DEV_KEYSPACES makes."""
        return f"{self.url.removesuffix('nos_ec')}{keyspace}"

    def copy_tables(self, source: str, target: str) -> int:
        """Copy all tables of a keyspace to another one, and let them follow the first. Returns how many rows were
        compared. A stream says `Running` before it begins to copy, too, and SwitchTraffic does not refuse that."""
        options = ("--all-tables", "--tablet-types=replica,primary")
        self.move_tables(target, "create", f"--source-keyspace={source}", *options)
        deadline_s = time.monotonic() + COPY_S_MAX
        while not all("Ended Copy Phase" in logged for logged in self._logs_of_streams(target)):
            assert time.monotonic() < deadline_s, self._logs_of_streams(target)
            time.sleep(0.5)
        diff = ("VDiff", "--format=json", "--workflow=move", f"--target-keyspace={target}")
        self.control(*diff, "create")
        compared: dict[str, object] = {}
        while compared.get("State") != "completed":
            assert time.monotonic() < deadline_s, compared
            time.sleep(0.5)
            compared = json.loads(self.control(*diff, "show", "last"))
        assert compared["HasMismatch"] is False, compared
        return int(str(compared["RowsCompared"]))

    def move_tables(self, target: str, action: str, *options: str) -> None:
        """Take a step of MoveTables, such as `switchtraffic`."""
        self.control("MoveTables", "--workflow=move", f"--target-keyspace={target}", action, *options)

    def _logs_of_streams(self, target: str) -> list[set[str]]:
        """What each stream that copies tables to this keyspace has logged."""
        said = json.loads(self.control("Workflow", f"--keyspace={target}", "show", "--workflow=move"))
        return [
            {log["type"] for log in stream["logs"]}
            for workflow in said["workflows"]
            for shard in workflow["shard_streams"].values()
            for stream in shard["streams"]
        ]

    def url_of_primary(self) -> str:
        """The URL of the same tables on the MySQL server of the primary, past vtgate."""
        ports = dict(line.split() for line in (self.folder / "ports").read_text().splitlines())
        socket = Path(os.environ.get("TMPDIR", "/tmp")) / f"nos-ec-vitess-{ports[f'mysqld-{self._primary()}']}.sock"
        return f"mysql+pymysql://vt_dba@localhost/vt_nos_ec?unix_socket={socket}&ssl_disabled=true"

    def pids_to_primary(self) -> list[int]:
        """The processes through which a statement passes: vtgate, and the vttablet and MySQL server of the primary."""
        number = self._primary()
        return [self._pid(part) for part in ("vtgate", f"vttablet-{number}", f"mysqld-{number}")]

    def _primary(self) -> str:
        """The number of the primary's tablet."""
        for line in self.control("GetTablets", "--keyspace=nos_ec").splitlines():
            alias, _, _, kind, *_ = line.split()
            if kind == PRIMARY:
                return alias[-1]
        raise ServerFailed(f"{self.name} has no primary")
