"""What the scripts of deploy/dev do before any server runs: wait for each other, and report what is missing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "deploy" / "dev"
MISSING = 3
COPIED = (
    *("base.sh", "fresh.sh", "fresh_machine.sh", "mariadb.sh", "sql_server.sh", "server.sh", "prometheus.sh"),
    "ceph_programs.sh",
    "s3_clients.sh",
)


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A copy of the scripts: they keep programs in var/dev of the repository they are in."""
    folder = tmp_path / "repository" / "deploy" / "dev"
    folder.mkdir(parents=True)
    for name in COPIED:
        shutil.copy(SCRIPTS / name, folder / name)
    return folder


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs that stand in for those of the system."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def add(folder: Path, name: str, *lines: str) -> None:
    program = folder / name
    program.write_text("\n".join(["#!/bin/bash", *lines, ""]))
    program.chmod(0o755)


def run(command: list[str], path: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path, "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def before(programs: Path) -> str:
    return f"{programs}:{os.environ['PATH']}"


def only(programs: Path, *names: str) -> str:
    """A PATH with nothing but these programs of the system."""
    for name in names:
        found = shutil.which(name)
        assert found is not None, name
        (programs / name).symlink_to(found)
    return str(programs)


@pytest.mark.parametrize("cells", ["0", "27", "30", "-1", "three", "03"])
def test_a_number_of_cells_that_the_stack_cannot_have_is_refused(tmp_path: Path, cells: str) -> None:
    environment = {"PATH": os.environ["PATH"], "NOS_EC_DEV_DIR": str(tmp_path), "NOS_EC_DEV_CELLS": cells}
    done = subprocess.run(
        [SCRIPTS / "stack.sh", "up"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"NOS_EC_DEV_CELLS is {cells}; it must be 1 to 26, or unset" in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was started"


def test_the_cells_of_the_stack_are_named_by_letters(tmp_path: Path) -> None:
    for cells, names in (("", ""), ("1", "a"), ("26", "abcdefghijklmnopqrstuvwxyz")):
        command = f'name=test; . "{SCRIPTS}/base.sh"; cell_names'
        environment = {"PATH": os.environ["PATH"], "NOS_EC_DEV_DIR": str(tmp_path), "NOS_EC_DEV_CELLS": cells}
        done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == list(names)


def test_maven_is_never_run_by_two_scripts_at_once(scripts: Path, programs: Path, tmp_path: Path) -> None:
    running = tmp_path / "running"
    add(programs, "mvn", f'mkdir "{running}" || exit 1', "sleep 0.2", f'rmdir "{running}"')
    command = f'name=test; . "{scripts}/base.sh"; for i in 1 2 3; do run_maven & done; wait -n && wait -n && wait -n'
    ran = run(["bash", "-c", command], before(programs))
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_database_is_chosen_on_the_command_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/RUNBOOKS.md exports the name of a database in a variable of this name."""
    monkeypatch.setenv("DATABASE", "nos_ec")
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # of the `make test` that runs this
        monkeypatch.delenv(name, raising=False)
    said = {
        words: subprocess.run(
            ["make", "-n", *words], cwd=SCRIPTS.parents[1], capture_output=True, text=True, check=True
        )
        for words in (("stack-status",), ("stack-status", "DATABASE=mysql"), ("stack-status", "CELLS=3"))
    }
    assert [one.stdout for one in said.values()] == [
        "deploy/dev/stack.sh status\n",
        "NOS_EC_DEV_DATABASE=mysql deploy/dev/stack.sh status\n",
        "NOS_EC_DEV_CELLS=3 deploy/dev/stack.sh status\n",
    ]


MARIADB = {"mariadbd", "mariadb-install-db", "my_print_defaults", "mariadb", "mariadb-binlog", "mariadb-dump"}


@pytest.mark.parametrize("lacking", sorted(MARIADB))
def test_mariadb_is_installed_unless_all_its_programs_are_present(scripts: Path, programs: Path, lacking: str) -> None:
    for program in MARIADB - {lacking}:
        add(programs, program)
    add(programs, "apt-get", 'echo "$@"', "exit 1")
    add(programs, "id", "echo 0")
    path = only(programs, "bash", "env", "dirname", "mkdir", "flock")
    # /usr/sbin and /sbin, which the script adds, may hold MariaDB here.
    base = scripts / "base.sh"
    base.write_text(base.read_text().replace("PATH=$PATH:/usr/sbin:/sbin", ""))
    ran = run([str(scripts / "mariadb.sh"), "install"], path)
    assert ran.returncode == MISSING
    assert "could not install mariadb-server-core mariadb-client;" in ran.stderr


def test_prometheus_is_used_where_it_is_installed(scripts: Path, programs: Path) -> None:
    for program in ("prometheus", "promtool"):
        add(programs, program)
    add(programs, "apt-get", "exit 1")
    ran = run([str(scripts / "prometheus.sh"), "programs"], only(programs, "bash", "env", "dirname", "mkdir"))
    assert ran.stdout == f"{programs}/prometheus\n{programs}/promtool\n"
    assert (ran.returncode, ran.stderr) == (0, "")


def test_prometheus_is_unpacked_and_never_installed(scripts: Path, programs: Path, tmp_path: Path) -> None:
    """Installing Debian's package would start a service."""
    asked = tmp_path / "asked"
    add(programs, "id", "echo 0")
    add(programs, "apt-get", f'echo "$*" >>{asked}', "touch prometheus_1_amd64.deb")
    add(programs, "dpkg-deb", 'mkdir -p "$3/usr/bin"', 'touch "$3/usr/bin/prometheus" "$3/usr/bin/promtool"')
    path = only(programs, "bash", "env", "dirname", "mkdir", "flock", "mktemp", "chmod", "touch", "rm", "mv")
    for _ in range(2):
        ran = run([str(scripts / "prometheus.sh"), "programs"], path)
        assert ran.returncode == 0, ran.stderr
    assert all(Path(line).is_file() for line in ran.stdout.splitlines())
    assert asked.read_text() == "-o APT::Sandbox::User=root download -q prometheus\n", "once"


@pytest.mark.parametrize("apt", [True, False])
def test_prometheus_that_cannot_be_had_is_reported(scripts: Path, programs: Path, apt: bool) -> None:
    if apt:
        add(programs, "id", "echo 0")
        add(programs, "apt-get", "exit 100")
        add(programs, "dpkg-deb")
    path = only(programs, "bash", "env", "dirname", "mkdir", "flock", "mktemp", "chmod", "touch", "rm", "mv")
    ran = run([str(scripts / "prometheus.sh"), "programs"], path)
    assert (ran.returncode, ran.stdout) == (MISSING, "")
    assert ("could not install" if apt else "needs prometheus and promtool") in ran.stderr


def test_dockers_registry_is_unpacked_and_never_installed(scripts: Path, programs: Path, tmp_path: Path) -> None:
    """Installing Debian's package would start a service."""
    asked = tmp_path / "asked"
    add(programs, "id", "echo 0")
    add(programs, "apt-get", f'echo "$*" >>{asked}', "touch docker-registry_2_amd64.deb")
    add(programs, "dpkg-deb", 'mkdir -p "$3/usr/bin"', 'touch "$3/usr/bin/docker-registry"')
    tools = ("bash", "env", "dirname", "mkdir", "sha256sum", "cut", "flock", "mktemp", "chmod", "touch", "rm", "mv")
    path = only(programs, *tools)
    for _ in range(2):
        ran = run([str(scripts / "s3_clients.sh"), "registry"], path)
        assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()).is_file()
    assert asked.read_text() == "-o APT::Sandbox::User=root download -q docker-registry\n", "once"
    (programs / "dpkg-deb").unlink()
    (Path(ran.stdout.strip()).parents[2] / ".complete").unlink()
    ran = run([str(scripts / "s3_clients.sh"), "registry"], path)
    assert (ran.returncode, ran.stdout) == (MISSING, "")
    assert "needs docker-registry" in ran.stderr


def test_a_postgresql_server_is_unpacked_and_never_installed(scripts: Path, programs: Path, tmp_path: Path) -> None:
    """Installing Debian's package would start a service. The one that is unpacked has the version of psql."""
    asked, initdb = tmp_path / "asked", "usr/lib/postgresql/9/bin/initdb"
    add(programs, "id", "echo 0")
    add(programs, "pgbackrest")
    add(programs, "psql", "echo 'psql (PostgreSQL) 9.18 (Debian 9.18-0+deb12u1)'")
    add(programs, "apt-get", f'echo "$*" >>{asked}', "touch postgresql-9_9.18_amd64.deb")
    add(programs, "dpkg-deb", f'mkdir -p "$(dirname "$3/{initdb}")"', f'touch "$3/{initdb}"')
    tools = ("bash", "env", "dirname", "mkdir", "sha256sum", "cut", "flock", "mktemp", "chmod", "touch", "rm", "mv")
    path = only(programs, *tools, "grep", "head")
    for _ in range(2):
        ran = run([str(scripts / "s3_clients.sh"), "postgres"], path)
        assert ran.returncode == 0, ran.stderr
    folder = tmp_path / "repository/var/dev/postgresql-9-debian"
    assert ran.stdout == f"{(folder / initdb).parent}\n"
    assert (folder / initdb).is_file()
    assert asked.read_text() == "-o APT::Sandbox::User=root download -q postgresql-9\n", "once"
    add(programs, "initdb")
    ran = run([str(scripts / "s3_clients.sh"), "postgres"], path)
    assert (ran.returncode, ran.stdout) == (0, f"{programs}\n"), "the one that is installed"
    (programs / "pgbackrest").unlink()
    add(programs, "apt-get", "exit 100")
    ran = run([str(scripts / "s3_clients.sh"), "postgres"], path)
    assert (ran.returncode, ran.stdout) == (MISSING, "")
    assert "could not install pgbackrest postgresql-client;" in ran.stderr


def test_s3_clients_that_cannot_be_had_are_reported(scripts: Path, programs: Path, tmp_path: Path) -> None:
    requirements = tmp_path / "repository" / "requirements" / "clients.txt"
    requirements.parent.mkdir()
    requirements.write_text("boto3==1\n")
    add(programs, "python3", '[ "$2" = venv ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python"')
    tools = (
        "bash",
        "env",
        "dirname",
        "mkdir",
        "sha256sum",
        "cut",
        "flock",
        "mktemp",
        "chmod",
        "rm",
        "mv",
        "touch",
        "cp",
    )
    path = only(programs, *tools)
    ran = run([str(scripts / "s3_clients.sh"), "python"], path)
    assert (ran.returncode, ran.stdout) == (MISSING, "")
    assert "needs the packages: rclone restic" in ran.stderr
    for program in ("rclone", "restic"):
        add(programs, program)
    ran = run([str(scripts / "s3_clients.sh"), "python"], path)
    assert (ran.returncode, ran.stdout) == (MISSING, "")
    assert "could not install" in ran.stderr
    assert list((tmp_path / "repository" / "var" / "dev").glob("s3-clients-*/.complete")) == []


def test_a_fresh_machine_needs_root(scripts: Path, programs: Path) -> None:
    add(programs, "id", "echo 1000")
    ran = run([str(scripts / "fresh.sh"), "true"], before(programs))
    assert (ran.returncode, ran.stdout) == (MISSING, "")
    assert ran.stderr == "fresh: needs root, for its mounts and namespaces\n"


def test_a_fresh_machine_needs_apt(scripts: Path, programs: Path) -> None:
    add(programs, "id", "echo 0")
    ran = run([str(scripts / "fresh.sh"), "true"], only(programs, "bash", "env", "dirname", "mkdir"))
    assert ran.returncode == MISSING
    assert ran.stderr == "fresh: needs apt, to find a Debian mirror\n"


def test_a_fresh_machine_needs_a_mirror(scripts: Path, programs: Path) -> None:
    add(programs, "id", "echo 0")
    add(programs, "apt-get", "exit 0")
    add(programs, "debootstrap", "exit 1")
    ran = run([str(scripts / "fresh.sh"), "true"], before(programs))
    assert ran.returncode == MISSING
    assert ran.stderr == "fresh: apt knows no Debian mirror; set NOS_EC_FRESH_MIRROR\n"


def test_a_system_that_cannot_be_created_is_reported_with_its_log(scripts: Path, programs: Path) -> None:
    add(programs, "id", "echo 0")
    add(programs, "apt-get", "echo http://127.0.0.1:9/debian")
    add(programs, "debootstrap", 'echo "no such suite"', "exit 1")
    ran = run([str(scripts / "fresh.sh"), "true"], before(programs))
    assert ran.returncode == MISSING
    log = scripts.parents[1] / "var" / "dev" / "fresh" / "fetch.log"
    assert f"see {log}" in ran.stderr
    assert log.read_text() == "no such suite\n"
    assert list((scripts.parents[1] / "var" / "dev").glob("fresh-bookworm*")) == [
        log.parents[1] / "fresh-bookworm.lock"
    ]


def test_a_fresh_machine_needs_overlayfs(scripts: Path, programs: Path) -> None:
    """The mounts fail on a machine that refuses them; the layer is removed nevertheless."""
    var = scripts.parents[1] / "var" / "dev"
    (var / "fresh-bookworm").mkdir(parents=True)
    (var / "fresh-bookworm" / ".complete").touch()
    (scripts.parents[1] / ".gitignore").write_text("var/\n")
    add(programs, "id", "echo 0")
    add(programs, "mount", "echo 'mount: wrong fs type' >&2", "exit 32")
    add(programs, "setpriv", 'while [ "$1" != bash ]; do shift; done', 'exec "$@"')
    ran = run([str(scripts / "fresh.sh"), "true"], before(programs))
    assert ran.returncode == MISSING
    assert "overlayfs cannot be mounted" in ran.stderr
    assert list((var / "fresh").glob("run.*")) == []


@pytest.mark.parametrize("arguments", [[], ["make venv", "make demo"]])
def test_a_fresh_machine_takes_one_command(scripts: Path, arguments: list[str]) -> None:
    ran = run([str(scripts / "fresh.sh"), *arguments], os.environ["PATH"])
    assert ran.returncode == 1
    assert "usage: " in ran.stderr


def test_the_systems_own_ceph_is_run(scripts: Path, programs: Path) -> None:
    """The function that runs `ceph` has the same name as the program."""
    add(programs, "ceph", 'echo "ran ceph $*"')
    lines = [
        "set -eu; ulimit -v 1000000; flavour=system conf=/conf admin_keyring=/keyring",
        '. "$(dirname "$0")/ceph_programs.sh"',
        "ceph osd tree",
    ]
    add(scripts, "fake.sh", *lines)
    ran = run([str(scripts / "fake.sh")], before(programs))
    assert ran.stdout == "ran ceph -c /conf --name client.admin --keyring /keyring --connect-timeout 30 osd tree\n"


def add_server(scripts: Path, command: str, more: str = ":") -> None:
    """A script for a server, fake.sh PORT start|stop, whose command prints its arguments."""
    lines = [
        f"name=fake; port=$1; shift; argument=4321.5; {more}",
        '. "$(dirname "$0")/base.sh"',
        "data=$base/data; need_program() { :; }; prepare() { :; }; make_data() { mkdir -p $data; }; url() { :; }",
        f"server_command() {{ {command}; }}",
        '. "$here/server.sh"',
    ]
    add(scripts, "fake.sh", *lines)


@pytest.mark.parametrize("fault", ["", "it is known to hang"])
def test_only_a_server_that_is_known_to_hang_is_killed_at_its_end(scripts: Path, tmp_path: Path, fault: str) -> None:
    program = "trap : TERM; while :; do sleep 0.1; done"
    add_server(scripts, f"printf '%s\\n' bash -c '{program}' $argument", f"end_s_max=1; may_hang_at_end='{fault}'")
    (tmp_path / "fake").mkdir()
    environment = {"PATH": os.environ["PATH"], "NOS_EC_DEV_DIR": str(tmp_path)}
    with subprocess.Popen(["bash", "-c", program, "4321.5"]) as server:
        try:
            (tmp_path / "fake" / "server.pid").write_text(str(server.pid))
            command = [str(scripts / "fake.sh"), "1", "stop"]
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
            if fault:
                assert (ran.returncode, server.wait(60)) == (0, -signal.SIGKILL)
                assert ran.stdout == f"fake did not stop within 1 s and was killed: {fault}\n"
            else:
                assert (ran.returncode, server.poll()) == (1, None)
                assert "is still running after 1 s" in ran.stderr
        finally:
            server.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_no_server(scripts: Path, tmp_path: Path, number: signal.Signals) -> None:
    """The server is started, but does not answer yet."""
    add_server(scripts, "printf '%s\\n' sleep $argument")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    environment = {"PATH": os.environ["PATH"], "NOS_EC_DEV_DIR": str(tmp_path)}
    recorded = tmp_path / "fake" / "server.pid"
    starting = subprocess.Popen([str(scripts / "fake.sh"), str(port), "start"], env=environment, stderr=subprocess.PIPE)
    deadline_s = time.monotonic() + 60
    while not (recorded.exists() and recorded.read_text().strip()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    pid = int(recorded.read_text())
    starting.send_signal(number)
    _, said = starting.communicate(timeout=60)
    assert (starting.returncode, recorded.exists()) == (143, False), said
    assert not Path(f"/proc/{pid}/cmdline").exists() or b"4321.5" not in Path(f"/proc/{pid}/cmdline").read_bytes()
