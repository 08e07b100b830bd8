"""Standard streams and files of the command with something wrong about them: no traceback, and a clear error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import httpx
import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.states import ObjectState
from nos_ec.settings import without_settings
from tests.rig.dev_servers import free_port
from tests.rig.waiting import until
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench

LOST_STDERR = ["2>/dev/full", "2>&-", "2> >(exec <&-)"]
"""A full disk, a closed stream, and a pipe whose reader has gone."""


def _start(
    bench: Bench, *arguments: str, stdout: int | IO[bytes] = subprocess.PIPE, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "nos_ec", "--config", str(bench.config), *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)


def _shell(bench: Bench, script: str) -> subprocess.CompletedProcess[bytes]:
    """Run a script in which `nos` is the command."""
    nos = f'nos() {{ "{sys.executable}" -m nos_ec --config "{bench.config}" "$@"; }}\n'
    return subprocess.run(["/bin/bash", "-c", nos + script], capture_output=True, timeout=WAIT_S_MAX, check=False)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("ls", "b", "--limit", "100000"), ("get", "b/big"), ("ls", "b", "--json")])
def test_closing_the_pipe_early_is_no_error(
    bench: Bench, system: System, arguments: tuple[str, ...], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    bench.put(system, "big", bench.data(3 * STRIPE))
    keys = [bench.put(system, f"{index:04}" + "x" * 900, b"1") for index in range(100)]
    assert sum(len(key.name) for key in keys) > 1 << 16, "more than a pipe holds"
    process = _start(bench, *arguments)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stderr:
        assert process.stdout.read(1)
        process.stdout.close()
        assert (process.wait(timeout=WAIT_S_MAX), process.stderr.read()) == (141, b"")


@pytest.mark.parametrize("command", ["ls b", "get b/o", "ls b --json", "stat b/o", "status"])
def test_a_full_disk_under_standard_output(bench: Bench, system: System, command: str) -> None:
    bench.put(system, "o", bench.data(CHUNK))
    done = _shell(bench, f"nos {command} > /dev/full")
    assert done.returncode == 2
    assert b"standard output cannot be written: No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_closed_standard_streams(bench: Bench, system: System) -> None:
    bench.put(system, "o", b"1")
    for script in ("nos get b/o >&-", "nos put b/x - <&-"):
        done = _shell(bench, script)
        assert (done.returncode, b"is closed" in done.stderr, b"Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize("lost", LOST_STDERR)
@pytest.mark.parametrize(
    ("command", "code"),
    [("get b/o", 0), ("get b/missing", 4), ("get", 2), ("stat b/missing --json", 4), ("consumer --once", 0)],
)
def test_a_lost_standard_error_changes_no_exit_code(
    bench: Bench, system: System, command: str, code: int, lost: str
) -> None:
    bench.put(system, "o", data := bench.data(CHUNK))
    bench.produce(system)
    done = _shell(bench, f"nos {command} {lost}")
    assert done.returncode == code
    if command == "get b/o":
        assert done.stdout == data


@pytest.mark.parametrize("lost", LOST_STDERR)
def test_a_daemon_works_on_without_standard_error(bench: Bench, system: System, lost: str) -> None:
    """It logs when it starts and when it ends."""
    key = bench.put(system, "o", bench.data(CHUNK))
    bench.produce(system)
    at_once = {"NOS_EC_CONSUMER__LINGER_MS": "0", "NOS_EC_CONSUMER__LINGER_MAX_MS": "0"}
    daemon = _daemon(bench, "consumer", lost, **at_once)
    try:
        until(lambda: system.client.store().head(key).state is ObjectState.PACKED, "the object is packed")
        assert _end(daemon) == 0
    finally:
        daemon.kill()
        daemon.wait()


@pytest.mark.parametrize("lost", [*LOST_STDERR, ">/dev/full 2>&1"])
@pytest.mark.usefixtures("system")
def test_a_gateway_serves_on_without_standard_error(bench: Bench, lost: str) -> None:
    """A line for each request is written there, and the address to standard output."""
    port = free_port()
    daemon = _daemon(bench, "s3 serve", lost, NOS_EC_S3__PORT=str(port), NOS_EC_S3__MASTER_KEY="12" * 32)

    def answers() -> bool:
        assert daemon.poll() is None, "it ended"
        try:
            return httpx.get(f"http://127.0.0.1:{port}", timeout=WAIT_S_MAX).status_code == 403
        except httpx.ConnectError:
            return False

    try:
        until(answers, "the gateway answers")
        assert answers()
        assert _end(daemon) == 0
    finally:
        daemon.kill()
        daemon.wait()


def _daemon(bench: Bench, command: str, redirected: str, **more: str) -> subprocess.Popen[bytes]:
    program = f'exec "{sys.executable}" -m nos_ec --config "{bench.config}" {command} {redirected}'
    environment = without_settings(os.environ) | more
    return subprocess.Popen(["/bin/bash", "-c", program], env=environment, stdout=subprocess.DEVNULL)


def _end(daemon: subprocess.Popen[bytes]) -> int:
    daemon.send_signal(signal.SIGTERM)
    return daemon.wait(timeout=WAIT_S_MAX)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_files_never_get_the_number_of_a_closed_stream(bench: Bench, system: System, closed: str) -> None:
    """A library in C would write its messages into the file that got it."""
    program, number = bench.folder / "program.py", bench.folder / "number"
    program.write_text(
        "import os, sys; from nos_ec.cli.terminal.streams import protect_stderr; protect_stderr();"
        "open(sys.argv[1], 'w').write(str(os.open('/dev/null', os.O_RDONLY)))"
    )
    _shell(bench, f'"{sys.executable}" "{program}" "{number}" {closed}')
    assert int(number.read_text()) > 2


@pytest.mark.parametrize("output", [".", "..", "/", "", "folder"])
def test_a_folder_is_refused_as_output(bench: Bench, system: System, tmp_path: Path, output: str) -> None:
    bench.put(system, "o", b"1")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    done = _shell(bench, f"cd '{tmp_path}' && nos get b/o --json -o '{output}'")
    assert done.returncode == 2, done.stderr
    assert "is a folder" in json.loads(done.stderr)["message"]
    assert sorted(tmp_path.rglob("*")) == before


def test_devices_pipes_and_links_are_written_not_replaced(bench: Bench, system: System, tmp_path: Path) -> None:
    """Replacing /dev/null by a file would be a bad surprise."""
    bench.put(system, "o", data := bench.data(CHUNK))
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    script = f"cd '{tmp_path}'; nos get b/o -o /dev/null && nos get b/o -o link || exit; cat pipe > copy & "
    done = _shell(bench, script + "nos get b/o -o pipe; status=$?; wait; exit $status")
    assert done.returncode == 0, done.stderr
    assert Path("/dev/null").is_char_device()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "target").read_bytes() == data
    assert (tmp_path / "copy").read_bytes() == data


def test_an_unreadable_source(bench: Bench, system: System) -> None:
    """Opening it works, and reading it fails."""
    done = bench.run("put", "b/o", "/proc/self/mem", "--json")
    assert done.returncode == 2
    assert json.loads(done.stderr)["message"] == "/proc/self/mem: Input/output error"
    assert list(system.landing.list_ids()) == []


def test_a_file_that_grows_while_it_is_read(bench: Bench, system: System, tmp_path: Path) -> None:
    """The stored bytes are a prefix of the real file, and read back."""
    path = tmp_path / "grows"
    path.write_bytes(bench.data(9 * STRIPE))

    class Growing:
        def __init__(self) -> None:
            self._file = path.open("rb")
            self._grown = 0

        def read(self, size: int, /) -> bytes:
            if self._grown < 20:
                self._grown += 1
                with path.open("ab") as more:
                    more.write(bench.data(STRIPE // 2))
            return self._file.read(size)

        def close(self) -> None:
            self._file.close()

    key = bench.put(system, "o", b"old")
    growing = Growing()
    row = system.client.store().put(key, growing)
    growing.close()
    assert row.size > 9 * STRIPE
    assert system.client.store().get(key) == path.read_bytes()[: row.size]


def test_a_name_that_is_not_text_is_refused_in_listings(bench: Bench, system: System) -> None:
    for where in (b"\xff", b"b/\xff"):
        done = bench.run("ls", os.fsdecode(where), "--json")
        assert done.returncode == 2, done.stderr
        assert "UTF-8" in json.loads(done.stderr)["message"]
