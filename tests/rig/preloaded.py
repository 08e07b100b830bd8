"""Runs Python programs in processes that begin with all modules of nos_ec loaded.

Loading them takes a second or more, which is most of what a short command costs, and the suites run hundreds of them. A
template process loads them once. For each program it forks a process of its own, which has the arguments, environment
and streams that it would have had from the start, and which can be killed like any other.

Not for tests of what happens while a process starts.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryDirectory

from nos_ec.cli.app import all_commands
from nos_ec.composition.wiring import initialise, open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.settings import load_settings
from tests.rig.at_rest import left_over, settle
from tests.rig.sql.compiled_statements import share_compiled_statements

ROOT = Path(__file__).parents[2]
LOADED = (
    "sqlalchemy.dialects.sqlite",
    "nos_ec.composition.operator_side",
    "nos_ec.composition.worker_side",
    "nos_gc.assemble",
)
STREAMS = ("stdin", "stdout", "stderr")


class Preloaded:
    """A template process. Programs run one after the other."""

    def __init__(self) -> None:
        self._template = subprocess.Popen(
            [sys.executable, "-m", "tests.rig.preloaded"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def close(self) -> None:
        """End the template."""
        with self._template:  # closes its streams, and waits for it
            pass

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        """As `subprocess.run` with Python and these arguments: `-m MODULE ...` or `FILE ...`.

        Raises TimeoutExpired when the program takes longer. It is killed then.
        """
        requests, answers = self._template.stdin, self._template.stdout
        assert requests is not None
        assert answers is not None
        with TemporaryDirectory(prefix="nos-ec-run-") as folder:
            files = [Path(folder, name) for name in STREAMS]
            files[0].write_bytes(stdin)
            request = (list(arguments), dict(environment), str(Path.cwd()), [str(file) for file in files])
            requests.write(json.dumps(request).encode() + b"\n")
            requests.flush()
            pid = int(answers.readline())
            with DefaultSelector() as selector:
                selector.register(answers, EVENT_READ)
                late = not selector.select(timeout_s)
            if late:
                os.kill(pid, signal.SIGKILL)
            code = int(answers.readline())
            out, err = files[1].read_bytes(), files[2].read_bytes()
        if late:
            raise subprocess.TimeoutExpired(list(arguments), timeout_s, out, err)
        return subprocess.CompletedProcess(list(arguments), code, out, err)


def serve() -> None:
    """The template: for each request, answer with a pid, and with the exit code when that process has ended."""
    for name in LOADED:
        importlib.import_module(name)
    all_commands()
    with redirect_stdout(StringIO()):  # of log lines, because it carries the answers
        compile_statements()
    gc.collect()
    gc.freeze()  # the collections of the programs would copy all pages with objects
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            become(*json.loads(line))
            return
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def compile_statements() -> None:
    """Let a store live a short life, so that its programs find the statements compiled that most of them run."""
    share_compiled_statements()
    with TemporaryDirectory(prefix="nos-ec-compiled-") as folder:
        landing = {"NOS_EC_LANDING__DEVICE_BYTES": "16MiB", "NOS_EC_LANDING__SEGMENT_BYTES": "1MiB"}
        settings = load_settings(None, {"NOS_EC_STORE__ROOT": folder, **landing})
        initialise(settings)
        with open_system(settings) as system:
            store = system.client.store()
            keys = [ObjectKey("b", name) for name in ("first", "second", "third")]
            store.put_many([(key, b"data") for key in keys])
            store.put(keys[0], BytesIO(b"another version"))
            settle(system)
            store.delete(keys[0])
            store.get(keys[1])
            store.list_objects("b", "", "", 1)
            settle(system)
            left_over(system)
    assert threading.active_count() == 1, "a fork copies only the thread that calls it"


def become(arguments: list[str], environment: dict[str, str], folder: str, files: list[str]) -> None:
    """Let this process run the program as if it had begun with it."""
    for number, file in enumerate(files):
        opened = os.open(file, (os.O_WRONLY | os.O_CREAT | os.O_APPEND) if number else os.O_RDONLY, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)  # the old one has read ahead
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(importlib.import_module("nos_ec.core.killpoints"))  # it reads the environment when it is loaded
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    serve()
