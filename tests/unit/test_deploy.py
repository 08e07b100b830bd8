"""The files in deploy/ fit the program: commands, options, settings and units exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from nos_ec.adapters.sql.schema import METADATA
from nos_ec.cli.app import run
from nos_ec.settings import Settings, check_settings, load_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
SERVICES = [path for path in UNITS if path.suffix == ".service"]
CRONTAB = DEPLOY / "cron" / "nos-ec.crontab"
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
    given = dict(value.split("=", 1) for value in read_unit(path)["Service"].get("Environment", []))
    env = {name: value.replace("%i", "1").replace("%d", "/run/credentials/x") for name, value in given.items()}
    assert check_settings(None, env) == []


def test_consumers_on_one_host_have_separate_ports() -> None:
    (given,) = read_unit(DEPLOY / "systemd" / "nos-ec-consumer@.service")["Service"]["Environment"]
    name, _, port = given.partition("=")
    readme = (DEPLOY / "README.md").read_text()
    producer = (DEPLOY / "systemd" / "nos-ec-producer.service").read_text()
    others = {str(Settings().api.port), *re.findall(r"(?:GC|PRODUCER)_PORT=(\d+)", producer + readme)}
    assert f"port {port.replace('%i', 'N')}" in readme
    assert len(others) == 3
    ports = {port.replace("%i", str(instance)) for instance in range(10)}
    assert len(ports - others) == 10
    assert all(check_settings(None, {name: one}) == [] for one in ports)
    for instance in ("10", "01", "a"):
        (problem,) = check_settings(None, {name: port.replace("%i", instance)})
        assert f"{name}: " in problem.text
        assert "use a whole number" in problem.text


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


def test_daemons_notify_and_end_up_under_one_target() -> None:
    daemons = [path for path in SERVICES if path.name != "nos-ec-gc.service"]
    assert len(daemons) == 3
    for path in daemons:
        unit = read_unit(path)
        assert unit["Service"]["Type"] == ["notify"]
        assert int(unit["Service"]["WatchdogSec"][0]) >= 30
        assert unit["Install"]["WantedBy"] == unit["Unit"]["PartOf"] == ["nos-ec.target"]
    assert read_unit(DEPLOY / "systemd" / "nos-ec-gc.timer")["Install"]["WantedBy"] == ["nos-ec.target"]


def test_timers_start_services_that_exist() -> None:
    timers = [path for path in UNITS if path.suffix == ".timer"]
    assert timers
    for path in timers:
        assert path.with_suffix(".service") in SERVICES


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """systemd's own check, with the program in the place where it looks."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed; the other tests of this file read the units themselves")
    program = tmp_path / "nos-ec"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copies = []
    for path in UNITS:
        copy = tmp_path / path.name.replace("@", "@1")
        copy.write_text(path.read_text().replace(PROGRAM, str(program)))
        copies.append(copy)
    found = verify(analyze, copies)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
    broken = tmp_path / "nos-ec-broken.service"
    broken.write_text(copies[0].read_text() + "\n[Service]\nNoSuchKey=1\n")
    assert "NoSuchKey" in verify(analyze, [broken]).stderr, "the check would pass for nothing"


def verify(analyze: str, units: list[Path]) -> subprocess.CompletedProcess[str]:
    command = [analyze, "verify", "--man=no", "--generators=no", *map(str, units)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_crontab_runs_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    entries = crontab_entries()
    assert entries
    field = r"(\*|\d+)(/\d+)?"
    for line in entries:
        *times, user, command = line.split(None, 6)
        assert len(times) == 5
        assert all(re.fullmatch(field, time) for time in times), line
        assert user == "nos-ec"
        assert "%" not in command, "cron makes a line break of it"
        environment, found, program = command.partition("; exec ")
        assert found
        assert ". /etc/nos-ec/environment" in environment
        assert exists(arguments_of(program.removesuffix(">/dev/null")))
    variables = dict(line.split("=", 1) for line in CRONTAB.read_text().splitlines() if re.match(r"NOS_EC_\w+=", line))
    assert variables
    assert check_settings(None, variables) == []


def test_the_rights_mention_every_table() -> None:
    """A new table gets its rights together with its migration."""
    script = (DEPLOY / "sql" / "grants.sh").read_text()
    rights = [
        line.split(None, 2) for line in script.partition("rights='\n")[2].partition("'\n")[0].splitlines() if line
    ]
    assert {role for role, *_ in rights} == {"front", "producer", "consumer", "gc"}, "the others only read"
    assert {table for _, table, _ in rights} == set(METADATA.tables)
    for role, table, granted in rights:
        for columns in re.findall(r"\((.*?)\)", granted):
            assert set(columns.split(", ")) <= set(METADATA.tables[table].columns.keys()), (role, table)


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
    text = (DEPLOY / "README.md").read_text()
    for path in [*UNITS, CRONTAB, DEPLOY / "nos-ec.toml", *DEPLOY.glob("prometheus/*"), *DEPLOY.glob("grafana/*")]:
        assert path.relative_to(DEPLOY).as_posix() in text, path.name
    for port in re.findall(r"PORT=(\d+)$", "\n".join(path.read_text() for path in SERVICES), re.M):
        assert port in text
