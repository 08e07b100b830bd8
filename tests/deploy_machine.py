"""Installs deploy/ with the very commands of its README, and runs what it installs: units, crontab and commands, each
as its own user, with its own keys. Files of this machine are stored, packed, read back, deleted and collected.

Run by tests/fresh_machine.sh on a fresh machine (as root, with the development stack on MariaDB), which it leaves
changed. Needs only the standard library. systemd is installed but does not run, so tests/rig/unit_files.py starts the
units as systemd would.
"""

from __future__ import annotations

import html
import json
import os
import pwd
import random
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import urlencode

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.rig.unit_files import Service, UnitFile  # noqa: E402

README = ROOT / "deploy" / "README.md"
CRONTAB = ROOT / "deploy" / "cron" / "nos-ec.crontab"
ETC = Path("/etc/nos-ec")
AS = "/opt/nos-ec/bin/nos-ec-as"
FILES = Path("/usr/share/doc")
FILES_COMPARED = 3
LOG = ROOT / "var" / "dev" / "deploy.log"
"""The log of the daemons. fresh_machine.sh shows the end of it if this program fails."""
ROLES = ("admin", "front", "reader", "producer", "consumer", "gc", "api", "console", "operator")
DAEMONS = ("nos-ec-producer.service", "nos-ec-consumer@1.service", "nos-ec-api.service")
CONSOLES = ("nos-ec-console.service", "nos-ec-operator.service")
"""Only one of them runs at a time."""
SETTINGS = {
    "consumer": {"CONSUMER__LINGER_MS": "0", "CONSUMER__LINGER_MAX_MS": "0", "REAPER__LANDING_GRACE_MS": "0"},
    "gc": {"GC__BLOCK_GRACE_MS": "0"},
}
"""Settings for the `environment` files of these roles, which remove delays and grace periods."""
PORTS = {
    "producer": "MONITORING__PORT",
    "consumer": "MONITORING__PORT",
    "api": "API__PORT",
    "console": "CONSOLE__PORT",
    "operator": "CONSOLE__PORT",
}
"""The settings of ports, which these files also get. The machine shares the network of its host, where other daemons
may use the default ports."""
WAIT_S_MAX = 180.0
CONFIGURATION = 3
"""The exit code of a command that lacks a right (docs/CLI.md)."""


def main() -> None:
    """Runs all steps. The first one that fails ends it with an error."""
    stack = dict(re.findall(r"^(NOS_EC_\w+)=(.*)$", sys.stdin.read(), re.M))
    replaced = prepare(stack)
    run_readme("The program", replaced)
    run_readme("One machine: the embedded store", replaced)
    check_embedded()
    run_readme("Users and configuration", replaced)
    configure(stack)
    run_readme("Keys and the store", replaced)
    run_readme("The units", replaced)
    for number in range(len(CONSOLES)):
        run_readme("The console", replaced, number)
    check_files()
    check_units()
    with LOG.open("w") as log:
        services = [UnitFile(name).start(log) for name in DAEMONS]
        try:
            names = put_through(services)
            check_consoles(log)
        finally:
            codes = {service.unit.name: service.stop() for service in services}
    require(set(codes.values()) == {0}, f"the daemons ended with {codes}")
    collect(names)
    print("deploy/ works as its README says")


# --- installing ---------------------------------------------------------------------------------------------------


def prepare(stack: Mapping[str, str]) -> dict[str, str]:
    """Let `ceph` and `mariadb` reach the development servers, as they do for an administrator. Returns the texts to be
    replaced in the README's commands."""
    shell("apt-get install -y -q systemd python3-rados >/dev/null")
    found = re.search(r"@([^/]+)/", stack["NOS_EC_STORE__METADATA_URL"])
    assert found
    host, port = found[1].split(":")
    (Path.home() / ".my.cnf").write_text(f"[client]\nhost={host}\nport={port}\nuser=root\n")
    shell("mariadb -e 'DROP DATABASE IF EXISTS nos_ec'")  # left by earlier steps
    cluster = Path(stack["NOS_EC_CEPH__CONF_FILE"]).parent
    shell("mkdir -p /etc/ceph")
    Path("/etc/ceph/ceph.conf").write_text((cluster / "ceph.conf").read_text())
    Path("/etc/ceph/ceph.conf").chmod(0o644)
    admin = Path("/etc/ceph/ceph.client.admin.keyring")
    admin.write_text((cluster / "admin.keyring").read_text())
    admin.chmod(0o600)
    chroot = ROOT / "var" / "dev" / "ceph-tentacle"
    program = Path("/usr/local/bin/ceph")
    inside = f"mkdir -p {chroot}/etc/ceph && mount --bind /etc/ceph {chroot}/etc/ceph && exec chroot {chroot} ceph"
    program.write_text(f'#!/bin/sh\nexec unshare --mount sh -c \'{inside} "$@"\' ceph "$@"\n')
    program.chmod(0o755)
    return {"db.example.com:3306": f"{host}:{port}"}


def run_readme(heading: str, replaced: Mapping[str, str], number: int = 0) -> None:
    """Run the block of commands with this number (0: the first) below a heading of the README."""
    section = README.read_text().partition(f"# {heading}\n")[2]
    commands = section.split("```")[2 * number + 1]
    assert commands, heading
    for old, new in replaced.items():
        commands = commands.replace(old, new)
    print(f"--- {heading}", flush=True)
    # There is no systemd to talk to: `enable` works, `start` is left out.
    shell(commands, {"SYSTEMD_OFFLINE": "1", "PIP_QUIET": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def configure(stack: Mapping[str, str]) -> None:
    """Configure what the README leaves to its reader: the brokers, and the settings of roles."""
    file = ETC / "nos-ec.toml"
    servers = f'servers = "{stack["NOS_EC_KAFKA__SERVERS"]}"\nreplication = 1\nin_sync_min = 1'
    text, count = re.subn(r"^servers = .*$", servers, file.read_text(), flags=re.M)
    assert count == 1
    file.write_text(text)
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    for role in SETTINGS.keys() | PORTS.keys():
        settings = SETTINGS.get(role, {}) | ({PORTS[role]: str(ports[role])} if role in PORTS else {})
        environment = ETC / role / "environment"
        environment.write_text("".join(f"NOS_EC_{name}='{value}'\n" for name, value in settings.items()))
        environment.chmod(0o600)


def free_ports(count: int) -> list[int]:
    """Return distinct ports, below the ports of tests and of Linux's clients, above the ports of the stack."""
    found: list[int] = []
    for port in random.sample(range(19_000, 20_000), 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


# --- checks -------------------------------------------------------------------------------------------------------


def check_embedded() -> None:
    """An object goes through the embedded store, which belongs to one user, and GC runs from cron."""
    shell(f"{AS} front put bucket/readme - <{README}; {AS} producer producer --once; {AS} consumer consumer --once")
    run_crontab()
    shell(f"{AS} reader get bucket/readme | cmp - {README}")
    strangers = [path for path in Path("/var/lib/nos-ec").rglob("*") if path.owner() != "nos-ec"]
    require(not strangers, f"{strangers} are of another user")
    as_nobody = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "ls", "/var/lib/nos-ec"]
    others = subprocess.run(as_nobody, capture_output=True)
    require(others.returncode != 0, "every user can read /var/lib/nos-ec")


def check_files() -> None:
    """No role reads the keys of another."""
    for role in ROLES:
        other = "nos-ec-api" if role == "producer" else "nos-ec-producer"
        for name in ("metadata-url", "ceph.keyring"):
            file = ETC / role / name
            found = (f"{file.stat().st_mode & 0o777:o}", file.owner(), file.group())
            require(found == ("640", "root", f"nos-ec-{role}"), f"{file}: {found}")
            read = ["setpriv", "--reuid", other, "--regid", other, "--init-groups", "cat", str(file)]
            require(subprocess.run(read, capture_output=True).returncode != 0, f"{other} can read {file}")


def check_units() -> None:
    """systemd accepts the units, and reads the same users from them as the runner."""
    names = [*DAEMONS, *CONSOLES, "nos-ec-gc.service", "nos-ec-gc.timer", "nos-ec.target"]
    verify = ["systemd-analyze", "verify", "--man=no", "--generators=no", *names]
    said = subprocess.run(verify, capture_output=True, text=True)
    require((said.returncode, said.stdout + said.stderr) == (0, ""), f"systemd-analyze: {said.stdout}{said.stderr}")
    # In a mount namespace of its own, because systemd wants to see control groups.
    become = "setpriv --reuid nobody --regid nogroup --clear-groups"
    test = "/lib/systemd/systemd --test --system --unit=nos-ec.target --no-pager"
    script = f"mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec {become} {test}"
    read = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True).stdout
    users = dict(re.findall(r"-> Unit (nos-ec-\S+\.service):\n(?:(?!\t*-> Unit).*\n)*?\t+User: (\S+)", read))
    for name in DAEMONS:
        user = UnitFile(name).one("User")
        require(users.get(name) == user, f"{name}: systemd reads the user {users.get(name)}, not {user}")


def put_through(services: list[Service]) -> list[str]:
    """Files are stored, packed and read, and no role can do more than it should. Returns the names of the objects."""
    for service in services:
        service.await_ready()
        user = service.unit.one("User")
        require(service.uids() == {pwd.getpwnam(user).pw_uid}, f"{service.unit.name} does not run as {user}")
    run_as("front", f"put -r share {FILES}")
    await_packed()
    names = [one["name"] for one in json.loads(run_as("reader", "ls share --limit 100000 --json"))["objects"]]
    compare(names[:: max(1, len(names) // FILES_COMPARED)])
    check_api(len(names))
    check_refusals(names[0])
    return names


def await_packed() -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while True:
        status = json.loads(run_as("reader", "status --json"))
        waiting = status["landed_objects"] + status["queued_objects"] + status["landing_deletions"]
        if waiting == 0 and status["packed_objects"]:
            return
        require(time.monotonic() < deadline_s, f"{waiting} objects are not packed: {status}")
        time.sleep(1.0)


def compare(names: list[str]) -> None:
    for name in names:
        stored = subprocess.run([AS, "reader", "get", f"share/{name}"], capture_output=True, check=True).stdout
        require(stored == (FILES / name).read_bytes(), f"{name} reads as something else")


def check_api(objects: int) -> None:
    token = (ETC / "api-token").read_text().strip()
    port = UnitFile("nos-ec-api.service").environment()[f"NOS_EC_{PORTS['api']}"]
    url = f"http://127.0.0.1:{port}/v1/status"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        packed = json.load(answer)["packed_objects"]
    require(0 < packed <= objects, f"the API counts {packed} packed objects of {objects}")


def check_consoles(log: IO[str]) -> None:
    """Log in to both consoles, and look at the daemons. The operators' console pauses GC and records by whom."""
    tokens = [(ETC / "console-token").read_text().strip(), (ETC / "console-operators").read_text().strip()]
    for unit, token in zip(CONSOLES, tokens, strict=True):
        service = UnitFile(unit).start(log)
        try:
            service.await_ready()
            user = service.unit.one("User")
            require(service.uids() == {pwd.getpwnam(user).pw_uid}, f"{unit} does not run as {user}")
            browser = Browser(f"http://127.0.0.1:{service.unit.environment()['NOS_EC_CONSOLE__PORT']}")
            browser.send("/login", token=token.removeprefix("ann:"))
            page = browser.open("/last-night")
            require("<td>alive</td>" in page, f"{unit} does not show the daemons: {page}")
            if unit == CONSOLES[0]:
                require("Pause GC" not in browser.open("/space"), f"{unit} lets its viewers pause GC")
            else:
                for action in ("pause", "resume"):
                    browser.send("/space/control", "/space", action=action)
        finally:
            code = service.stop()
        require(code == 0, f"{unit} ended with {code}")
    found = json.loads(run_as("operator", "audit --kind change --json"))["entries"]
    said = [(one["operator"], one["why"].split(",")[0]) for one in found]
    require(said == [("ann", "GC is paused"), ("ann", "GC is not paused")], f"the audit trail has {said}")


class Browser:
    """A visitor of a console, with cookies."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def open(self, path: str, data: bytes | None = None) -> str:
        """Return the text of a page, after redirects. With `data`, sends a form, as from a page of the console."""
        headers = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
        with self._opener.open(urllib.request.Request(self._url + path, data, headers), timeout=30) as answer:
            return str(answer.read().decode())

    def send(self, path: str, of_page: str = "", **fields: str) -> None:
        """Send the form of a page, with its hidden fields."""
        page = self.open(of_page or path)
        hidden = re.findall(r'type="hidden" name="(\w+)" value="(.*?)"', page)
        values = {name: html.unescape(value) for name, value in hidden} | fields
        self.open(path, urlencode(values).encode())


def check_refusals(name: str) -> None:
    """The reader cannot delete, the producer cannot write, the API cannot change a row."""
    for role, command in {"reader": f"rm share/{name}", "producer": "consumer --once", "api": "gc run --apply"}.items():
        tried = subprocess.run([AS, role, *shlex.split(command)], capture_output=True, text=True)
        require(tried.returncode == CONFIGURATION, f"{role} {command} ended with {tried.returncode}: {tried.stderr}")
        print(f"{role}: {tried.stderr.strip().splitlines()[-1]}", flush=True)
    url = re.fullmatch(r".*//(.*?):(.*?)@(.*?):([0-9]+)/.*\n", (ETC / "api" / "metadata-url").read_text())
    assert url
    user, password, host, port = url.groups()
    login = ["mariadb", "--no-defaults", f"--host={host}", f"--port={port}", f"--user={user}", f"--password={password}"]
    changed = subprocess.run([*login, "nos_ec", "-e", "UPDATE objects SET size = 0"], capture_output=True, text=True)
    require("command denied" in changed.stderr, f"the API changes rows: {changed.stderr}")
    print(f"api: {changed.stderr.strip()}", flush=True)


def collect(names: list[str]) -> None:
    """Most objects are deleted. GC runs once from its unit and once from cron; then their blocks are gone. The consumer
    was stopped before, so that no block is open."""
    run_as("front", "rm", *(f"share/{name}" for name in names[1:]))
    before = json.loads(run_as("reader", "status --json"))["stripes"]
    with LOG.open("a") as log:
        code = UnitFile("nos-ec-gc.service").start(log).wait()
    require(code == 0, f"nos-ec-gc.service ended with {code}")
    run_crontab()
    after = json.loads(run_as("reader", "status --json"))["stripes"]
    require(after < before, f"GC left {after} of {before} stripes")
    compare(names[:1])


def run_crontab() -> None:
    """Run each line as cron does: with the variables of the crontab and little else, as its user, in its shell."""
    lines = [line for line in CRONTAB.read_text().splitlines() if line and not line.startswith("#")]
    variables = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
    jobs = [line.split(None, 6) for line in lines if not re.match(r"\w+=", line)]
    assert jobs
    for *_, user, command in jobs:
        home = pwd.getpwnam(user).pw_dir
        environment = {"HOME": home, "LOGNAME": user, "PATH": "/usr/bin:/bin", **variables}
        become = ["setpriv", "--reuid", user, "--regid", user, "--init-groups", environment["SHELL"], "-c", command]
        ran = subprocess.run(become, env=environment, cwd=home, capture_output=True, text=True)
        said = ran.stdout + ran.stderr
        require((ran.returncode, said) == (0, ""), f"cron would mail, with exit status {ran.returncode}: {said}")


# --- commands -----------------------------------------------------------------------------------------------------


def shell(commands: str, environment: Mapping[str, str] | None = None) -> None:
    bash = ["bash", "-euo", "pipefail", "-c", commands]
    subprocess.run(bash, cwd=ROOT, env=os.environ | (environment or {}), check=True)


def run_as(role: str, command: str, *more: str) -> str:
    """Run a command as a role, and return its output."""
    ran = subprocess.run([AS, role, *shlex.split(command), *more], capture_output=True, text=True)
    require(ran.returncode == 0, f"{role}: {command} ended with {ran.returncode}: {ran.stderr}")
    return ran.stdout


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(f"deploy: {otherwise}")


if __name__ == "__main__":
    main()
