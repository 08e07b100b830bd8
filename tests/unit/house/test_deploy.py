"""The files in deploy/ fit the program: commands, options, settings and units exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from nos_ec.adapters.sql.tables.schema import METADATA
from nos_ec.bench.collecting import GC_NICE
from nos_ec.cli.app import run
from nos_ec.settings import Settings, check_settings, load_settings
from tests.rig.unit_files import UnitFile

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
SERVICES = [path for path in UNITS if path.suffix == ".service"]
CRONTAB = DEPLOY / "cron" / "nos-ec.crontab"
DROP_IN = DEPLOY / "cluster" / "units.conf"
ROLES = ("admin", "front", "reader", "producer", "consumer", "gc", "api", "console", "operator")
README = (DEPLOY / "README.md").read_text()
PROGRAM = "/opt/nos-ec/bin/nos-ec"
CONFIG = "/etc/nos-ec/nos-ec.toml"

Unit = dict[str, dict[str, list[str]]]


def read_unit(path: Path) -> Unit:
    """{section: {key: values}} of a unit file. Raises ValueError for a line outside its grammar."""
    unit: Unit = {}
    section = ""
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
            unit[section] = {}
        elif match := re.fullmatch(r"(\w+)=(.*)", line):
            unit[section].setdefault(match[1], []).append(match[2])
        else:
            raise ValueError(f"{path.name}: {line}")
    return unit


def arguments_of(command: str) -> list[str]:
    """The arguments of a command line that runs the program with the configuration in its place."""
    words = shlex.split(command)
    assert words[:3] == [PROGRAM, "--config", CONFIG]
    return words[3:]


def exists(arguments: list[str]) -> bool:
    """True when such a command with such options exists. Only parses them, and runs nothing."""
    return run([*arguments, "--help"]) == 0


def crontab_entries() -> list[str]:
    lines = CRONTAB.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#") and not re.match(r"\w+=", line)]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_services_run_commands_that_exist(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = read_unit(path)["Service"]
    (command,) = service["ExecStart"]
    assert exists(arguments_of(command))


@pytest.mark.parametrize("wrong", ["gc run --aply", "gc runn", "consumr", "producer --twice"])
def test_a_command_that_does_not_exist_is_detected(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not exists(wrong.split())


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_services_set_settings_that_exist(path: Path) -> None:
    lines = [*read_unit(path)["Service"].get("Environment", []), *read_unit(DROP_IN)["Service"]["Environment"]]
    given = dict(value.split("=", 1) for value in lines)
    env = {name: value.replace("%i", "1").replace("%d", "/run/credentials/x") for name, value in given.items()}
    assert check_settings(None, env) == []


def test_consumers_on_one_host_have_separate_ports() -> None:
    (given,) = read_unit(DEPLOY / "systemd" / "nos-ec-consumer@.service")["Service"]["Environment"]
    name, _, port = given.partition("=")
    producer = (DEPLOY / "systemd" / "nos-ec-producer.service").read_text()
    others = {str(Settings().api.port), *re.findall(r"MONITORING__PORT=(\d+)", producer + README)}
    assert f"port {port.replace('%i', 'N')}" in README
    assert len(others) == 3
    ports = {port.replace("%i", str(instance)) for instance in range(10)}
    assert len(ports - others) == 10
    assert all(check_settings(None, {name: one}) == [] for one in ports)
    for instance in ("10", "01", "a"):
        (problem,) = check_settings(None, {name: port.replace("%i", instance)})
        assert f"{name}: " in problem.text
        assert "use a whole number" in problem.text


def test_daemons_of_several_cells_have_separate_ports() -> None:
    rows = re.findall(
        r"\| `(\w+/(\d*)\.?environment)` \| `(NOS_EC_(?:MONITORING|API)__PORT)='(\d+)'` \|$", README, re.M
    )
    assert [row[0] for row in rows] == [
        *("producer/environment", "api/environment", "gc/environment"),
        *("consumer/1.environment", "consumer/2.environment"),
    ]
    assert "leave room for 20 cells" in README
    settings = Settings()
    gateway = read_unit(DEPLOY / "systemd" / "nos-ec-front.service")["Service"]["Environment"][-1]
    used = [settings.s3.port, settings.console.port, int(gateway.rpartition("=")[2])]
    used += [int(port) + number for *_, port in rows for number in range(20)]
    (of_cell,) = re.findall(r"^NOS_EC_MONITORING__PORT='(\d+)'$", README, re.M)
    used += [int(of_cell)]
    assert len(set(used)) == len(used)
    assert all(check_settings(None, {variable: port}) == [] for *_, variable, port in rows)


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_services_are_confined(path: Path) -> None:
    service = read_unit(path)["Service"]
    for key, value in {
        "User": "nos-ec",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "PrivateTmp": "yes",
        "CapabilityBoundingSet": "",
    }.items():
        assert service[key] == [value]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_each_service_has_a_role_of_its_own(path: Path) -> None:
    """%j in the drop-in is the last word of the unit's name. Later files win: the role's own settings come last."""
    role = path.stem.removeprefix("nos-ec-").rstrip("@")
    assert role in ROLES
    of_instance = [f"-/etc/nos-ec/{role}/%i.environment"] if "@" in path.stem else []
    assert read_unit(path)["Service"]["EnvironmentFile"] == [f"-/etc/nos-ec/{role}/environment", *of_instance]
    drop_in = read_unit(DROP_IN)["Service"]
    assert drop_in["User"] == drop_in["Group"] == ["nos-ec-%j"]
    assert "EnvironmentFile" not in drop_in
    named = {line.split(":")[0] for line in drop_in["LoadCredential"]}
    assert {line.rpartition("=%d/")[2] for line in drop_in["Environment"] if "=%d/" in line} == named


def test_the_fresh_machine_runs_units_with_their_drop_ins(tmp_path: Path) -> None:
    """tests/rig/unit_files.py, where systemd does not run."""
    for path in UNITS:
        shutil.copy(path, tmp_path)
    alone = UnitFile("nos-ec-consumer@3.service", tmp_path)
    assert (alone.one("User"), alone.all("StateDirectory")) == ("nos-ec", ["nos-ec"])
    drop_ins = tmp_path / "nos-ec-.service.d"
    drop_ins.mkdir()
    shutil.copy(DROP_IN, drop_ins)
    unit = UnitFile("nos-ec-consumer@3.service", tmp_path)
    assert [unit.one("User"), unit.one("Group"), *unit.all("StateDirectory")] == ["nos-ec-consumer"] * 3
    assert unit.environment()["NOS_EC_AUDIT__FOLDER"] == "/var/lib/nos-ec-consumer/audit"
    assert "metadata-url:/etc/nos-ec/consumer/metadata-url" in unit.all("LoadCredential")
    file = tmp_path / "environment"
    file.write_text("# a comment\nNOS_EC_CEPH__USER='client.other'\n")
    own = tmp_path / "nos-ec-consumer@3.service.d"
    own.mkdir()
    (own / "own.conf").write_text(
        f"[Service]\nEnvironmentFile={file}\nEnvironment=NOS_EC_CEPH__USER=client.overridden\n"
    )
    found = UnitFile("nos-ec-consumer@3.service", tmp_path).environment()
    assert found["NOS_EC_CEPH__USER"] == "client.other"
    assert found["NOS_EC_MONITORING__PORT"] == "9473"
    credentials = "/run/credentials/nos-ec-consumer@3.service"
    assert found["NOS_EC_STORE__METADATA_URL_FILE"] == f"{credentials}/metadata-url"


def test_daemons_notify_and_end_up_under_one_target() -> None:
    daemons = [path for path in SERVICES if path.name != "nos-ec-gc.service"]
    assert len(daemons) == 6
    for path in daemons:
        unit = read_unit(path)
        assert unit["Service"]["Type"] == ["notify"]
        assert int(unit["Service"]["WatchdogSec"][0]) >= 30
        assert unit["Service"]["OOMPolicy"] == ["continue"]  # each may have several processes
        assert unit["Install"]["WantedBy"] == unit["Unit"]["PartOf"] == ["nos-ec.target"]
    assert read_unit(DEPLOY / "systemd" / "nos-ec-gc.timer")["Install"]["WantedBy"] == ["nos-ec.target"]


def test_timers_start_services_that_exist() -> None:
    timers = [path for path in UNITS if path.suffix == ".timer"]
    assert timers
    for path in timers:
        assert path.with_suffix(".service") in SERVICES


def test_the_crontab_runs_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    entries = crontab_entries()
    assert entries
    field = r"(\*|\d+)(/\d+)?"
    for line in entries:
        *times, user, command = line.split(None, 6)
        assert len(times) == 5
        assert all(re.fullmatch(field, time) for time in times), line
        assert user == "root"
        assert "%" not in command, "cron makes a line break of it"
        program, role, *arguments = shlex.split(command.removesuffix(">/dev/null").removeprefix("nice -n 10 "))
        assert program == f"{PROGRAM}-as"
        assert role in ROLES
        assert exists(arguments)
    assert read_unit(DEPLOY / "systemd" / "nos-ec-gc.service")["Service"]["Nice"] == [str(GC_NICE)]
    (niced,) = (line for line in entries if " gc run " in line)
    assert f" nice -n {GC_NICE} " in niced
    variables = dict(line.split("=", 1) for line in CRONTAB.read_text().splitlines() if re.match(r"NOS_EC_\w+=", line))
    assert variables
    assert check_settings(None, variables) == []


def test_the_rights_mention_every_table() -> None:
    """A new table gets its rights together with its migration."""
    script = (DEPLOY / "sql" / "grants.sh").read_text()
    rights = [
        line.split(None, 2) for line in script.partition("rights='\n")[2].partition("'\n")[0].splitlines() if line
    ]
    assert {role for role, *_ in rights} == {"front", "producer", "consumer", "gc", "operator"}, "the others only read"
    of_admin_alone = {"access_keys"}
    assert {table for _, table, _ in rights} == set(METADATA.tables) - of_admin_alone
    for role, table, granted in rights:
        for columns in re.findall(r"\((.*?)\)", granted):
            assert set(columns.split(", ")) <= set(METADATA.tables[table].columns.keys()), (role, table)


def table() -> dict[str, tuple[str, str]]:
    """{role: (rights on both pools, tables whose rows it changes)} as the README says."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in README.splitlines() if line[:1] == "|"]
    return {row[0]: (row[2], row[4]) for row in rows if row[0] in ROLES}


def test_the_readme_has_the_rights_that_the_scripts_give() -> None:
    said = table()
    assert tuple(said) == ROLES
    script = (DEPLOY / "sql" / "grants.sh").read_text()
    ceph = (DEPLOY / "dev" / "ceph_pools.sh").read_text()
    for role, (caps, changes) in said.items():
        granted = set(re.findall(rf"^{role} +(\w+) ", script, re.M))
        assert set(re.findall(r"`(\w+)`", changes)) == granted
        (case,) = re.findall(rf'^    (?:[a-z| ]* )?{role}(?: [a-z| ]*)?\) echo "(.*)" ;;', ceph, re.M)
        assert case == f"allow {caps} pool=$pool_landing, allow {caps} pool=$pool_blocks"
    for caps in ("rw", "r"):
        (of_loop,) = re.findall(rf"^for role in (.*); do new_key \$role {caps}; done", README, re.M)
        assert of_loop.split() == [role for role in ROLES if said[role][0] == caps]


def grants(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DEPLOY / "sql" / "grants.sh", *arguments], capture_output=True, text=True)


def test_each_cell_has_database_users_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "gc").mkdir()
    whole = grants(str(tmp_path), "gc").stdout
    of_cell = grants("-n", "b-1", "-d", "nos_ec_b", str(tmp_path), "gc").stdout
    urls = {path.name: path.read_text() for path in (tmp_path / "gc").iterdir()}
    assert urls.keys() == {"metadata-url", "metadata-url-b-1"}
    assert re.fullmatch(r"mysql\+pymysql://nos-ec-gc-b-1:\w{48}@127.0.0.1:3306/nos_ec_b\n", urls["metadata-url-b-1"])
    assert "CREATE USER IF NOT EXISTS 'nos-ec-gc-b-1'@'%' IDENTIFIED BY" in of_cell
    assert "'nos-ec-gc'@" not in of_cell
    assert len(of_cell.splitlines()) == len(whole.splitlines())
    assert grants("-n", "b-1", "-d", "nos_ec_b", str(tmp_path), "gc").stdout == of_cell  # it keeps the password
    for wrong, why in (
        ("B", "the characters a-z and 0-9, and single hyphens"),
        ("b--1", "single hyphens"),
        ("b" * 30, "a shorter name"),
    ):
        refused = grants("-n", wrong, str(tmp_path), "gc")
        assert refused.returncode == 1
        assert why in refused.stderr


def rights_on_kafka(rows: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """{(resource, operation)} of pairs such as ("both topics and group", "Describe, Read")."""
    rights = set()
    for resources, operations in rows:
        for resource in resources.replace("both topics", "topic and dead-letter topic").split(" and "):
            assert resource in ("topic", "dead-letter topic", "group")
            rights |= {(resource, operation) for operation in operations.split(", ")}
    return rights


def test_the_readme_has_the_rights_on_kafka_that_its_page_has() -> None:
    """tests/real/kafka/test_kafka_tools.py lets users work with the rights of that page."""
    rows: dict[str, list[tuple[str, str]]] = {role: [] for role in ROLES}
    page = (DEPLOY.parent / "docs" / "KAFKA.md").read_text()
    of_page = page.partition("| who | resource | operations |\n|---|---|---|\n")[2].partition("\n\n")[0]
    who: list[str] = []
    for line in of_page.splitlines():
        _, names, resource, operations, _ = (cell.strip() for cell in line.split("|"))
        if names:
            who = ["admin" if name == "`nos-ec init`" else name.lower() for name in names.split(", ")]
        for role in set(who) & set(ROLES):
            rows[role].append((re.split(r",| \(", resource)[0], re.sub(r" \(.*?\)", "", operations)))
    lines = [[cell.strip() for cell in line.split("|")] for line in README.splitlines() if line[:1] == "|"]
    cells = {line[1]: line[4] for line in lines if line[1] in ROLES}
    assert set(cells) == set(ROLES)
    for role in ROLES:
        said = [part.partition(": ") for part in cells[role].split("; ") if part != "none"]
        assert rights_on_kafka([(one, more) for one, _, more in said]) == rights_on_kafka(rows[role]), role


def test_a_command_can_be_run_as_each_role(tmp_path: Path) -> None:
    """The script with its folders elsewhere, and with a setpriv that shows what it would run."""
    script = (DEPLOY / "nos-ec-as").read_text()
    replaced = script.replace("=/etc/nos-ec\n", f"={tmp_path}\n")
    assert replaced != script
    (tmp_path / "setpriv").write_text('#!/bin/sh\nenv | grep ^NOS_EC_ | sort; echo "$@"\n')
    (tmp_path / "id").write_text('#!/bin/sh\n[ "$*" = -u ] && cat "${0%/*}/uid"\n')
    (tmp_path / "uid").write_text("0\n")
    for program in ("setpriv", "id"):
        (tmp_path / program).chmod(0o755)
    (tmp_path / "gc").mkdir()
    for name, content in {"metadata-url": "", "ceph.keyring": "", "environment": "NOS_EC_GC__WAIT_MS='7'\n"}.items():
        (tmp_path / "gc" / name).write_text(content)

    def run_as(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", replaced, "nos-ec-as", *arguments],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )

    *settings, command = run_as("gc", "gc", "plan").stdout.splitlines()
    assert settings == [
        f"NOS_EC_CEPH__KEYRING_FILE={tmp_path}/gc/ceph.keyring",
        "NOS_EC_CEPH__USER=client.nos-ec-gc",
        "NOS_EC_GC__WAIT_MS=7",
        f"NOS_EC_STORE__METADATA_URL_FILE={tmp_path}/gc/metadata-url",
    ]
    assert command.endswith(f"{PROGRAM} --config {tmp_path}/nos-ec.toml gc plan")
    assert "--reuid nos-ec --regid nos-ec --init-groups" in command, "there is no user nos-ec-gc here"
    assert run_as("reader", "ls").stdout.splitlines()[:-1] == []
    assert run_as("root", "ls").returncode == 2
    (tmp_path / "uid").write_text("1000\n")
    refused = run_as("reader", "ls")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "nos-ec-as: only root can run a command as another user; use sudo\n"
    assert check_settings(None, dict(line.split("=", 1) for line in settings)) == []


def test_what_only_cron_runs_keeps_an_audit_trail(tmp_path: Path) -> None:
    """No unit has made the folder of the role's user on this host."""
    script = (DEPLOY / "nos-ec-as").read_text()
    replaced = script.replace("=/etc/nos-ec\n", f"={tmp_path}\n").replace("=/var/lib/", f"={tmp_path}/")
    assert replaced.count(str(tmp_path)) == 2
    programs = {
        "setpriv": "env | grep ^NOS_EC_",
        "id": "echo 0",
        "install": f'echo "$@" >>{tmp_path}/installed; mkdir "$8"',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    for _ in range(2):
        run = subprocess.run(
            ["sh", "-c", replaced, "nos-ec-as", "gc", "gc", "run"],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.splitlines() == [f"NOS_EC_AUDIT__FOLDER={tmp_path}/nos-ec-gc/audit"]
    installed = (tmp_path / "installed").read_text().splitlines()
    assert installed == [f"-d -m 0750 -o nos-ec-gc -g nos-ec-gc {tmp_path}/nos-ec-gc"], "made once, for its user"


def test_the_sample_configuration_of_a_cluster_is_right() -> None:
    settings = load_settings(DEPLOY / "cluster" / "nos-ec.toml", {})
    assert (settings.store.backend, settings.log.backend) == ("ceph", "kafka")
    assert settings.kafka.servers
    assert f'servers = "{settings.kafka.servers}"' in (DEPLOY / "cluster" / "nos-ec.toml").read_text()
    capacity = (DEPLOY.parent / "docs" / "CAPACITY.md").read_text()
    (advised,) = re.findall(r"^\| `consumer\.lanes` \| (\d+), which read (\d+) landing", capacity, re.M)
    assert (settings.consumer.lanes, settings.consumer.read_threads) == tuple(map(int, advised))


def test_the_sample_configuration_is_right() -> None:
    settings = load_settings(DEPLOY / "nos-ec.toml", {})
    assert settings.store.root == Path("/var/lib/nos-ec")


def test_the_configuration_of_the_development_stack_is_right() -> None:
    settings = load_settings(DEPLOY / "dev" / "nos-ec.toml", {})
    programs = (DEPLOY.parent / "var" / "dev").resolve()
    assert (settings.store.backend, settings.log.backend) == ("ceph", "kafka")
    assert settings.ceph.conf_file is not None
    assert settings.ceph.conf_file.resolve() == programs / "ceph" / "ceph.conf"
    assert settings.ceph.keyring_file is not None
    assert settings.ceph.keyring_file.resolve() == programs / "ceph" / f"{settings.ceph.user}.keyring"
    ports = {script: default_port(script) for script in ("kafka.sh", "sql_server.sh")}
    assert settings.kafka.servers == f"127.0.0.1:{ports['kafka.sh']}"
    assert settings.store.metadata_url is not None
    assert make_url(settings.store.metadata_url.get_secret_value()).port == ports["sql_server.sh"]


def default_port(script: str) -> int:
    """The port a script of deploy/dev chooses when none is given."""
    found = re.search(r"^port=\$\{NOS_EC_DEV_PORT:-(\d+)\}$", (DEPLOY / "dev" / script).read_text(), re.M)
    assert found is not None
    return int(found[1])


def test_the_scripts_of_the_development_stack_can_be_read_by_bash() -> None:
    scripts = sorted((DEPLOY / "dev").glob("*.sh"))
    assert scripts
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)
        sourced = "usage:" not in script.read_text().partition("\n\n")[0]
        assert (script.stat().st_mode & 0o111 == 0) is sourced, script.name


def test_the_readme_knows_every_file() -> None:
    of_dev = DEPLOY / "dev"
    for path in DEPLOY.rglob("*"):
        if path.is_file() and of_dev not in path.parents and path.name != "README.md":
            assert f"`{path.relative_to(DEPLOY).as_posix()}`" in README, path.name
    for port in re.findall(r"PORT=(\d+)$", "\n".join(path.read_text() for path in SERVICES), re.M):
        assert port in README
