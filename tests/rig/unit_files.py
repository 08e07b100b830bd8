"""Runs what a unit file of systemd says where systemd does not run: its command, with its user, environment and
credentials. Needs only the standard library.

Knows the directives of deploy/ and the specifiers in them. Does not confine the process as systemd does; that the
confinement is well-formed is for `systemd-analyze verify`.
"""

from __future__ import annotations

import os
import pwd
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import IO

UNITS = Path("/etc/systemd/system")
RUN = Path("/run")
FROM_SYSTEMD = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8"}
START_S_MAX = 120.0
STOP_S_MAX = 90.0
"""TimeoutStopSec of the units."""


class UnitFile:
    """The [Service] section of a unit with its drop-ins, its specifiers resolved."""

    def __init__(self, name: str, units: Path = UNITS) -> None:
        self.name = name
        stem, _, suffix = name.rpartition(".")
        prefix, _, instance = stem.partition("@")
        template = f"{prefix}@.{suffix}" if "@" in stem else name
        self._credentials = RUN / "credentials" / name
        self._specifiers = {"i": instance, "j": prefix.rpartition("-")[2], "d": str(self._credentials), "%": "%"}
        self._service: dict[str, list[str]] = {}
        self._read(units / template)
        words = prefix.split("-")
        folders = [f"{'-'.join(words[:count])}-.{suffix}.d" for count in range(1, len(words))]
        for folder in (*folders, f"{template}.d", f"{name}.d"):
            for path in sorted((units / folder).glob("*.conf")):
                self._read(path)

    def _read(self, path: Path) -> None:
        section = ""
        for line in path.read_text().splitlines():
            if line.startswith("["):
                section = line
            elif section == "[Service]" and line and line[0] not in "#;":
                key, _, value = line.partition("=")
                values = self._service.setdefault(key, [])
                if value:
                    values.append(re.sub(r"%(.)", lambda found: self._specifiers[found[1]], value))
                else:
                    values.clear()

    def one(self, key: str, default: str = "") -> str:
        """The last value of a directive."""
        return [default, *self._service.get(key, [])][-1]

    def all(self, key: str) -> list[str]:
        """The values of a directive that is a list."""
        return self._service.get(key, [])

    def environment(self) -> dict[str, str]:
        """As systemd makes it: a file overrides what the units say."""
        found = dict(FROM_SYSTEMD)
        for line in self.all("Environment"):
            found |= dict(word.split("=", 1) for word in shlex.split(line))
        for file in self.all("EnvironmentFile"):
            path = Path(file.removeprefix("-"))
            if path.exists() or not file.startswith("-"):
                lines = [line for line in path.read_text().splitlines() if line and line[0] not in "#;"]
                found |= dict(shlex.split(line)[0].split("=", 1) for line in lines)
        return found

    def start(self, log: IO[str]) -> Service:
        """Start the command as the unit's user. The caller stops it. Raises KeyError when there is no such user."""
        user = pwd.getpwnam(self.one("User"))
        self._load_credentials(user)
        for name in self.all("StateDirectory"):
            path = Path("/var/lib") / name
            path.mkdir(exist_ok=True)
            shutil.chown(path, self.one("User"), self.one("Group"))
            path.chmod(int(self.one("StateDirectoryMode", "0755"), 8))
        ready = RUN / f"{self.name}.notify"
        ready.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.bind(str(ready))
        ready.chmod(0o666)
        own = {"USER": user.pw_name, "HOME": user.pw_dir, "NOTIFY_SOCKET": str(ready)}
        if self.all("LoadCredential"):
            own["CREDENTIALS_DIRECTORY"] = str(self._credentials)
        become = ["setpriv", "--reuid", self.one("User"), "--regid", self.one("Group"), "--init-groups"]
        become += ["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        process = subprocess.Popen(
            [*become, *shlex.split(self.one("ExecStart"))],
            env=self.environment() | own,
            cwd="/",
            umask=int(self.one("UMask", "0022"), 8),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        return Service(self, process, listener)

    def _load_credentials(self, user: pwd.struct_passwd) -> None:
        """Copy what systemd reads as root to a folder of the service."""
        shutil.rmtree(self._credentials, ignore_errors=True)
        self._credentials.mkdir(parents=True)
        for line in self.all("LoadCredential"):
            name, _, source = line.partition(":")
            copy = self._credentials / name
            shutil.copyfile(source, copy)
            copy.chmod(0o400)
            os.chown(copy, user.pw_uid, user.pw_gid)
        self._credentials.chmod(0o500)
        os.chown(self._credentials, user.pw_uid, user.pw_gid)


class Service:
    """A process that a unit started."""

    def __init__(self, unit: UnitFile, process: subprocess.Popen[bytes], listener: socket.socket) -> None:
        self.unit = unit
        self.process = process
        self._listener = listener

    def await_ready(self) -> None:
        """Wait until the service says that it is ready, as Type=notify does."""
        said = ""
        while "READY=1" not in said:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.unit.name} ended with {self.process.returncode} before it was ready")
            if not select.select([self._listener], [], [], 1.0)[0]:
                continue
            said = self._listener.recv(4096).decode()

    def uids(self) -> set[int]:
        """The real, effective, saved and file system user of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return set(map(int, re.findall(r"^Uid:(.*)$", status, re.M)[0].split()))

    def wait(self) -> int:
        """Wait for the end of a oneshot service. Returns its exit code; 0 for what SuccessExitStatus lists."""
        code = self.process.wait()
        return 0 if str(code) in self.unit.one("SuccessExitStatus").split() else code

    def stop(self) -> int:
        """End it as `systemctl stop` does. Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._listener.close()
