"""deploy/dev/fresh.sh: an empty machine, of which nothing is left when it ends, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.rig.dev_servers import MISSING, SCRIPTS, START_S_MAX
from tests.rig.programs import ON_EVERY_MACHINE

pytestmark = pytest.mark.real

SCRIPT = SCRIPTS / "fresh.sh"
REPOSITORY = SCRIPTS.parents[1]
WAIT_S_MAX = 60.0


class FreshMachines:
    """Runs of the script, with their layers in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = os.environ | {"NOS_EC_DEV_DIR": str(folder)}

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Skips (fails, with REQUIRE_REAL=1) where a fresh machine is impossible."""
        ran = subprocess.run(
            [str(SCRIPT), command], env=self._environment, capture_output=True, text=True, timeout=START_S_MAX
        )
        if ran.returncode == MISSING and os.environ.get("REQUIRE_REAL") != "1":
            pytest.skip(ran.stderr.strip())
        return ran

    def begin(self, command: str) -> subprocess.Popen[str]:
        """As `run`, without waiting for its end."""
        return subprocess.Popen([str(SCRIPT), command], env=self._environment, stdout=subprocess.PIPE, text=True)

    def layers(self) -> list[Path]:
        """Folders of runs."""
        return list(self.folder.glob("fresh/run.*"))

    def processes(self) -> set[int]:
        """Processes on the machines: they see a layer among their mounts."""
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                mounts = (process / "mountinfo").read_text()
            except OSError:
                continue  # it ended meanwhile
            if str(self.folder) in mounts:
                found.add(int(process.name))
        return found


@pytest.fixture
def machines() -> Iterator[FreshMachines]:
    """Their layers are where a developer's are: on a machine that is itself a layer, overlayfs refuses /tmp."""
    data = REPOSITORY / "var"
    data.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=data, prefix="test-fresh-") as folder:
        found = FreshMachines(Path(folder))
        ran = found.run("true")  # the first one ever says that it installs the pristine system
        assert ran.returncode == 0, ran.stderr
        yield found


def await_no_process(machines: FreshMachines) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while left := machines.processes():
        assert time.monotonic() < deadline_s, f"{left} still run"
        time.sleep(0.05)


def test_a_fresh_machine_has_only_python_and_make(machines: FreshMachines) -> None:
    ran = machines.run(
        "python3 -c 'print(6 * 7)'; make --version | head -n 1; for p in git java ps ss; do ! command -v $p; done"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    answer, make = ran.stdout.splitlines()
    assert answer == "42"
    assert make.startswith("GNU Make")


def test_a_fresh_machine_has_the_programs_that_tests_and_scripts_do_not_install(machines: FreshMachines) -> None:
    names = " ".join(sorted(ON_EVERY_MACHINE))
    ran = machines.run(f"for name in {names}; do command -v $name >/dev/null || echo $name; done")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_command_does_not_ignore_signals(machines: FreshMachines) -> None:
    asked = "import signal; print(*(signal.getsignal(one).name for one in (signal.SIGTERM, signal.SIGQUIT)))"
    ran = machines.run(f"python3 -c '{asked}'; python3 -c 'import signal; signal.raise_signal(2)' 2>/dev/null")
    assert (ran.stdout, ran.returncode) == ("SIG_DFL SIG_DFL\n", 130)


def test_the_working_tree_is_copied_without_what_git_ignores(machines: FreshMachines) -> None:
    ran = machines.run("sha256sum Makefile; ls -A; echo changed >Makefile")
    assert ran.returncode == 0, ran.stderr
    checksum, *names = ran.stdout.splitlines()
    here = subprocess.run(["sha256sum", "Makefile"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert checksum == here.stdout.strip()
    assert {"Makefile", "nos_ec", "tests", ".ci", ".gitignore"} <= set(names)
    assert not {".git", ".venv", "var"} & set(names)
    assert "changed" not in (REPOSITORY / "Makefile").read_text()


def test_what_a_command_leaves_is_discarded_and_its_status_is_returned(machines: FreshMachines) -> None:
    ran = machines.run("touch /usr/bin/left; mount -t tmpfs tmpfs /mnt; setsid sleep 1000 & exit 7")
    assert ran.returncode == 7, ran.stderr
    assert (machines.processes(), machines.layers()) == (set(), [])
    assert machines.run("! test -e /usr/bin/left").returncode == 0


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_terminated_run_leaves_nothing_running(machines: FreshMachines, end: signal.Signals) -> None:
    assert machines.run("true").returncode == 0
    with machines.begin(
        "mount -t tmpfs tmpfs /mnt; setsid sleep 1000 & setsid nohup sleep 1000 & echo here; wait"
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "here\n"
        assert len(machines.processes()) >= 3
        run.send_signal(end)
        assert run.wait(WAIT_S_MAX) == (-end if end == signal.SIGKILL else 128 + end)
    await_no_process(machines)
    if end == signal.SIGKILL:
        assert len(machines.layers()) == 1, "no process was left to remove it"
        assert machines.run("true").returncode == 0
    assert machines.layers() == []


def test_the_layer_of_a_run_in_progress_is_left_alone(machines: FreshMachines) -> None:
    assert machines.run("true").returncode == 0
    with machines.begin("echo here; until test -e end; do sleep 0.1; done; echo done") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "here\n"
        (layer,) = machines.layers()
        assert machines.run("true").returncode == 0
        assert machines.layers() == [layer]
        (layer / "project" / "end").touch()
        assert first.stdout.read() == "done\n"
    assert first.returncode == 0
    assert machines.layers() == []


def test_installed_programs_are_kept_on_request_where_they_are_missing(machines: FreshMachines) -> None:
    assert machines.run("true").returncode == 0
    repository = machines.folder / "repository"
    shutil.copytree(SCRIPTS, repository / "deploy" / "dev")
    (repository / ".gitignore").write_text("var/\n")
    programs = repository / "var" / "dev"
    programs.mkdir(parents=True)
    (programs / "fresh-bookworm").symlink_to(REPOSITORY / "var" / "dev" / "fresh-bookworm")

    def install(mark: str, then: str = "true", keep: str = "1") -> None:
        folder = "var/dev/kafka-tools-4.0.0"
        command = f"mkdir -p {folder}; echo {mark} >{folder}/mark; touch {folder}/.complete; {then}"
        environment = {name: value for name, value in os.environ.items() if name != "NOS_EC_DEV_DIR"}
        subprocess.run(
            [str(repository / "deploy" / "dev" / "fresh.sh"), command],
            env=environment | {"NOS_EC_FRESH_KEEP": keep},
            timeout=START_S_MAX,
        )

    install("unasked", keep="0")
    install("failed", then="exit 1")
    assert not (programs / "kafka-tools-4.0.0").exists()
    install("first")
    install("second")
    assert (programs / "kafka-tools-4.0.0" / "mark").read_text() == "first\n"
