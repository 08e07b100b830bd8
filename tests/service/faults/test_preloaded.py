"""Programs that run in a copy of a process with all modules loaded: as if they had been started from scratch."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.rig.preloaded import Preloaded
from tests.service.conftest import WAIT_S_MAX

PROGRAM = """
import json, os, sys
from nos_ec.core import killpoints
print(json.dumps([sys.argv[1:], sys.stdin.read(), os.environ.get("GIVEN"), os.getcwd(), killpoints._NAME, os.getpid()]))
print("said", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (path := tmp_path / "program.py").write_text(PROGRAM)
    return str(path)


def test_a_program_has_its_own_arguments_streams_environment_and_exit_code(preloaded: Preloaded, program: str) -> None:
    pids = set()
    for code, given in ((0, "x"), (7, "y"), (0, None)):
        environment = {"NOS_EC_KILL_AT": f"at.{code}"} | ({"GIVEN": given} if given else {})
        done = preloaded.run([program, str(code), "a b"], environment, b"in\n", WAIT_S_MAX)
        *told, pid = json.loads(done.stdout)
        assert told == [[str(code), "a b"], "in\n", given, str(Path.cwd()), f"at.{code}"]
        assert (done.returncode, done.stderr) == (code, b"said\n")
        pids.add(pid)
    assert len(pids) == 3
    assert os.getpid() not in pids


def test_a_program_that_takes_too_long_is_killed(preloaded: Preloaded, tmp_path: Path) -> None:
    (path := tmp_path / "program.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(1000)\n")
    begun = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as ended:
        preloaded.run([str(path)], {}, b"", 2.0)
    assert ended.value.output == b"begun\n"
    assert time.monotonic() - begun < WAIT_S_MAX
    assert preloaded.run(["-m", "nos_ec", "--version"], {}, b"", WAIT_S_MAX).stdout.startswith(b"nos-ec ")
