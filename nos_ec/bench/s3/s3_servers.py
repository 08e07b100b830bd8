"""Starts the servers that `bench s3` compares: gateways of a nos_ec store, and radosgw."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO

from nos_ec.adapters.rados.client.cluster import RadosOptions
from nos_ec.bench.s3.s3_client import Credentials
from nos_ec.bench.servers.cluster import BenchCluster
from nos_ec.bench.servers.processes import listeners
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.ports.metadata import ROOT_ACCOUNT
from nos_ec.settings import Settings, without_settings, write_settings

START_S_MAX = 120.0
STOP_S_MAX = 30.0
RADOSGW_STOP_S_MAX = 2.0
"""radosgw takes half a minute to stop, and its zone is removed anyway, so it is killed after this time."""
POLL_S = 0.1
LAST_WORDS = 2000
ZONE = "nosecbench"


@dataclass(frozen=True, slots=True)
class Server:
    """One or more processes that serve the same objects."""

    urls: Sequence[str]
    credentials: Credentials
    pids: Sequence[int]


# --- gateways of nos_ec ---------------------------------------------------------------------------
@contextmanager
def gateways(settings: Settings, folder: Path, count: int) -> Iterator[Server]:
    """Yields `count` processes of `nos-ec s3 serve` on free ports. `s3.processes` is ignored, because CPU time of child
    processes would not be counted. Their configuration in `folder` has secrets, so only its owner may read it. Raises
    Transient if a process does not start."""
    s3 = settings.s3.model_copy(update={"host": "127.0.0.1", "port": 0, "processes": 1})
    config = folder / "gateway.toml"
    write_settings(settings.model_copy(update={"s3": s3}), config)
    environment = without_settings(os.environ) | {"NOS_EC_S3__MASTER_KEY": os.urandom(32).hex()}
    program = (sys.executable, "-m", "nos_ec", "--config", str(config), "s3")
    with ExitStack() as stack:
        made = _ran([*program, "key", "create", ROOT_ACCOUNT, "--json"], environment)
        key = json.loads(made)
        started = [
            stack.enter_context(_process([*program, "serve", "--json"], environment, folder / f"gateway-{number}.log"))
            for number in range(count)
        ]
        urls = [str(json.loads(_first_line(process, log))["url"]) for process, log in started]
        pids = [process.pid for process, _ in started]
        yield Server(urls, Credentials(key["access_key"], key["secret"]), pids)


def _first_line(process: subprocess.Popen[bytes], log: Path) -> bytes:
    assert process.stdout is not None
    line: bytes = process.stdout.readline()
    if not line:
        raise Transient(f"bench: the gateway did not start: {_last_words(log)}")
    return line


# --- radosgw --------------------------------------------------------------------------------------
class RadosGateways:
    """radosgw with its own zone: indexes and accounts are in `pool`, the bytes of objects in a namespace of
    `data_pool`."""

    def __init__(self, options: RadosOptions, programs: Sequence[str], pool: str, data_pool: str, folder: Path) -> None:
        """Create the zone. `programs` are words before the names of Ceph's programs in a command. Raises ConfigError if
        they cannot be run."""
        self._programs = programs
        self._folder = folder
        roots = [f"--rgw-{root}-root-pool={pool}:root" for root in ("realm", "zonegroup", "zone", "period")]
        # Ceph may run in a chroot that contains only the cluster's folder, so paths must not lead through others.
        self._options = [f"--conf={options.conf_file.resolve()}", f"--name={options.user}"]
        self._options += [] if options.keyring_file is None else [f"--keyring={options.keyring_file.resolve()}"]
        self._options += [*roots, *(f"--rgw-{part}={ZONE}" for part in ("realm", "zonegroup", "zone"))]
        self._credentials = Credentials(os.urandom(10).hex().upper(), os.urandom(20).hex())
        self._make_zone(pool, f"{data_pool}:{pool}")

    def _make_zone(self, pool: str, data_pool: str) -> None:
        self._admin("realm", "create", "--default")
        self._admin("zonegroup", "create", "--master", "--default")
        self._admin("zone", "create", "--master", "--default")
        zone = json.loads(self._admin("zone", "get"))
        placement = zone["placement_pools"][0]["val"]
        placed = _in_one_pool(zone, pool)
        assert isinstance(placed, dict)
        name = next(iter(placement["storage_classes"]))
        placed["placement_pools"][0]["val"]["storage_classes"][name]["data_pool"] = data_pool
        self._admin("zone", "set", given=json.dumps(placed))
        self._admin("period", "update", "--commit")
        key = ("--access-key", self._credentials.access_key, "--secret-key", self._credentials.secret)
        self._admin("user", "create", "--uid=bench", "--display-name=bench", *key)

    def _admin(self, *arguments: str, given: str = "") -> str:
        command = [*self._programs, "radosgw-admin", *self._options, *arguments]
        return _ran(command, dict(os.environ), given, failure="radosgw cannot be set up")

    @contextmanager
    def serve(self, *, tcp_nodelay: bool) -> Iterator[Server]:
        """Yields a radosgw on a free port, with default settings otherwise. Raises ConfigError if it does not start."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        frontend = f"beast endpoint=127.0.0.1:{port}{' tcp_nodelay=1' if tcp_nodelay else ''}"
        command = [*self._programs, "radosgw", "--foreground", *self._options, f"--rgw-frontends={frontend}"]
        log = self._folder / f"radosgw-{port}.log"
        with _process(command, dict(os.environ), log, RADOSGW_STOP_S_MAX) as (process, _):
            deadline_s = time.monotonic() + START_S_MAX
            while not (pids := listeners([port])):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise ConfigError(f"bench: radosgw did not start: {_last_words(log)}")
                time.sleep(POLL_S)
            yield Server([f"http://127.0.0.1:{port}"], self._credentials, pids)


def _in_one_pool(value: object, pool: str) -> object:
    """Return a description of a zone in which everything is in namespaces of one pool."""
    if isinstance(value, dict):
        return {name: _in_one_pool(one, pool) for name, one in value.items()}
    if isinstance(value, list):
        return [_in_one_pool(one, pool) for one in value]
    if isinstance(value, str) and value.startswith(f"{ZONE}.rgw."):
        return f"{pool}:{value.removeprefix(f'{ZONE}.rgw.').replace(':', '.')}"
    return value


@contextmanager
def rados_gateways(
    cluster: BenchCluster, options: RadosOptions, programs: Sequence[str], data_pool: str, folder: Path
) -> Iterator[RadosGateways]:
    """Yields a zone that is removed at the end, with everything in it. Raises ConfigError, Transient."""
    with cluster.replicated_pool("rgw", "rgw") as pool:
        try:
            yield RadosGateways(options, programs, pool, data_pool, folder)
        finally:
            cluster.remove_namespace(data_pool, pool)


# --- processes ------------------------------------------------------------------------------------
@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str], log: Path, stop_s_max: float = STOP_S_MAX
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a command in its own session, which is ended at the end of the block. stdout is a pipe, and stderr goes to
    the log."""
    with log.open("wb") as errors:
        process = _started(command, environment, errors)
    try:
        yield process, log
    finally:
        _end_group(process, stop_s_max)


def _end_group(process: subprocess.Popen[bytes], stop_s_max: float) -> None:
    """End the process and its children. Children may end later, so wait until the last one has closed stdout."""
    assert process.stdout is not None
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if _is_closed(process.stdout, stop_s_max):
            break
    process.wait()
    process.stdout.close()


def _is_closed(pipe: IO[bytes], seconds_max: float) -> bool:
    """Return whether all writers of a pipe close it within `seconds_max`. Discards their output."""
    deadline_s = time.monotonic() + seconds_max
    with DefaultSelector() as selector:
        selector.register(pipe, EVENT_READ)
        while selector.select(max(0.0, deadline_s - time.monotonic())):
            if not os.read(pipe.fileno(), 1 << 16):
                return True
    return False


def _started(command: Sequence[str], environment: Mapping[str, str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - our own program, or radosgw as the user names it
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot_run(command, error) from error


def _ran(command: Sequence[str], environment: Mapping[str, str], given: str = "", failure: str = "it failed") -> str:
    try:
        ran = subprocess.run(  # noqa: S603 - as below
            command, env=environment, input=given, capture_output=True, text=True, timeout=START_S_MAX, check=False
        )
    except OSError as error:
        raise _cannot_run(command, error) from error
    except subprocess.TimeoutExpired as error:
        raise Transient(f"bench: {' '.join(command)} took longer than {START_S_MAX:.0f} s") from error
    if ran.returncode != 0:
        raise ConfigError(f"bench: {failure}: {' '.join(command[:4])} ...: {ran.stderr[-LAST_WORDS:].strip()}")
    return ran.stdout


def _cannot_run(command: Sequence[str], error: OSError) -> ConfigError:
    return ConfigError(
        f"bench: {command[0]} cannot be run ({error.strerror}); install radosgw of the cluster's release, or set"
        " --ceph-programs to the words that run Ceph's programs"
    )


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace")[-LAST_WORDS:].strip() or "it printed nothing"
