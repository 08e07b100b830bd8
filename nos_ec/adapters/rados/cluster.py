"""A connection to a Ceph cluster, and what the monitors tell.

Every operation has a time limit, set before the connection is made: without one, an operation on a placement group
that is not active waits for ever.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from nos_ec.adapters.rados import binding
from nos_ec.adapters.rados.binding import Rados
from nos_ec.adapters.rados.failures import port_error, rados_error
from nos_ec.adapters.rados.pool import Pool
from nos_ec.core.errors import ConfigError, NosError, Transient

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RadosOptions:
    """How to reach a cluster. Raises ConfigError for values that make no sense.

    conf_file: its ceph.conf; `mon_host` is all that is needed in it.
    user: such as client.nos-ec-consumer.
    keyring_file: holds the user's key; left out, Ceph looks where ceph.conf or its own defaults say.
    op_timeout_ms: for one read or write, after which it raises Transient. Ceph counts whole seconds: rounded up.
    connect_timeout_ms: for connecting, and for commands to the monitors; rounded up as well.
    """

    conf_file: Path
    user: str
    keyring_file: Path | None = None
    op_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000

    def __post_init__(self) -> None:
        if not self.user.startswith("client.") or self.user == "client.":
            raise ConfigError(f"Ceph user {self.user!r}: give its whole name, such as client.nos-ec-consumer")
        for name, value in (("op_timeout_ms", self.op_timeout_ms), ("connect_timeout_ms", self.connect_timeout_ms)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; give 1 or more: an operation without a limit can hang for ever")


_LAGGY_S_MAX, _LAGGY_SHARE = 2, 4
"""After so long, and after this share of its time limit at the latest, an operation makes librados ask the monitors for
a newer map of the OSDs, and again each time as much has passed. So one that an OSD dropped, because its placement group
moved or its pool was deleted, is sent elsewhere or fails with the reason. By Ceph's own settings that begins after
10 s, when all the time is gone."""

LOG_LEVEL = "info"

LogWatcher = Callable[[str, str, str], None]
"""Takes (channel, level, text) of an entry of the cluster's log, such as ("cluster", "[WRN]", "osd.3 failed ...")."""


_NOT_ACCEPTED = frozenset({errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.EIO})
"""What connecting gives for a key that is wrong, unknown, of a type librados does not know, or does not parse (EIO)."""


class RadosCluster:
    """A connection, to be shared by the stores of a process. Safe to call from several threads.

    Connecting raises ConfigError when the binding, ceph.conf, the keyring or the key is wrong, Transient when the
    monitors do not answer in time. Close the stores first, and have no call under way: closing ends librados' threads.
    """

    def __init__(self, options: RadosOptions) -> None:
        self._options = options
        self._closing = threading.Lock()
        self._pools: list[Pool] = []
        self._watched = False
        module = binding.load()
        with self._errors("connecting"):
            rados = module.Rados(name=options.user, clustername="ceph")
        self._rados: Rados | None = rados
        try:
            self._configure(rados)
            self._connect(rados)
            # By these a process is known to Ceph: in `ceph osd blocklist ls`, say.
            _log.info("connected to Ceph", user=options.user, addresses=rados.get_addrs())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_pool(self, name: str, namespace: str = "") -> Pool:
        """A pool, or one namespace of it. Raises ConfigError when there is no such pool, Transient."""
        rados = self._open()
        with self._errors(f"opening pool {name}"):
            try:
                with binding.os_errors():
                    ioctx = rados.open_ioctx(name)
                    ioctx.set_namespace(namespace)
                    pool = Pool(rados, ioctx, name, namespace, _seconds(self._options.op_timeout_ms))
            except FileNotFoundError as error:
                raise ConfigError(
                    f"the Ceph cluster of {self._options.conf_file} has no pool {name}: make it as docs/CEPH.md says,"
                    " or correct the configuration"
                ) from error
        self._pools.append(pool)
        return pool

    def command(self, prefix: str, **arguments: str | int | float | list[str]) -> Any:
        """The JSON answer of the monitors to a command such as "df"; None to one without an answer.

        Raises ConfigError, Transient."""
        request = json.dumps({"prefix": prefix, "format": "json", **arguments})
        with self._errors(f"command `{prefix}`"):
            return self._answer(prefix, *self._open().mon_command(request, b""))

    def command_osd(self, osd: int, prefix: str, **arguments: str | int | float | list[str]) -> Any:
        """The JSON answer of one OSD to a command such as "perf dump". Needs an administrator's caps.

        Raises ConfigError, Transient."""
        request = json.dumps({"prefix": prefix, "format": "json", **arguments})
        with self._errors(f"command `{prefix}`"):
            return self._answer(prefix, *self._open().osd_command(osd, request, b""))

    def watch_log(self, watcher: LogWatcher) -> LogWatch:
        """Have the monitors push each new entry of the cluster's log, of level info and above, to `watcher`.

        It is called in a thread of librados that holds the connection's lock: it must neither raise nor wait, nor use
        this cluster, but hand over to another thread. Entries are lost while the connection to the monitors is, so
        whoever must not miss anything looks now and then by himself. One watch at a time. Raises ConfigError,
        Transient."""
        rados = self._open()

        def take(*entry: object) -> None:
            _, _, channel, *_, level, text = entry
            watcher(_text(channel), _text(level), _text(text))

        with self._closing:
            if self._watched:
                raise ValueError("the log of this cluster is watched already: close that watch first")
            with self._errors("watching the log"):
                rados.monitor_log2(LOG_LEVEL, take, None)
            self._watched = True
        return LogWatch(self._end_watch)

    def _end_watch(self) -> None:
        with self._closing:
            if self._watched and self._rados is not None:
                self._rados.monitor_log2(LOG_LEVEL, None, None)
            self._watched = False

    def close(self) -> None:
        """Close what is open. Idempotent."""
        self._end_watch()
        with self._closing:
            rados, self._rados = self._rados, None
        if rados is not None:
            for pool in self._pools:
                pool.close()
            rados.shutdown()

    # --- connecting -----------------------------------------------------------------------------------

    def _configure(self, rados: Rados) -> None:
        options = self._options
        if not options.conf_file.is_file():
            raise ConfigError(f"{options.conf_file} does not exist: give the path of the cluster's ceph.conf")
        try:
            with binding.os_errors():
                rados.conf_read_file(str(options.conf_file))
        except OSError as error:
            raise ConfigError(
                f"{options.conf_file} cannot be read as a ceph.conf (errno {error.errno}): correct it"
            ) from error
        laggy_s = str(min(_LAGGY_S_MAX, _seconds(options.op_timeout_ms) / _LAGGY_SHARE))
        settings = {
            "rados_osd_op_timeout": str(_seconds(options.op_timeout_ms)),
            "objecter_timeout": laggy_s,
            "objecter_tick_interval": laggy_s,
            "rados_mon_op_timeout": str(_seconds(options.connect_timeout_ms)),
            "client_mount_timeout": str(_seconds(options.connect_timeout_ms)),
            # What goes wrong is raised; a library must not write to its host's standard error, nor make sockets.
            "log_to_stderr": "false",
            "err_to_stderr": "false",
            "admin_socket": "",
        }
        if options.keyring_file is not None:
            if not options.keyring_file.is_file():
                raise ConfigError(f"{options.keyring_file} does not exist: give the path of {options.user}'s keyring")
            settings["keyring"] = str(options.keyring_file)
        for name, value in settings.items():
            with self._errors(f"setting {name}"):
                rados.conf_set(name, value)

    def _connect(self, rados: Rados) -> None:
        options = self._options
        try:
            with binding.os_errors():
                rados.connect()
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise ConfigError(
                    f"{options.conf_file} leads to no monitor, or there is no keyring: is mon_host set in it, and the"
                    f" keyring of {options.user} there?"
                ) from error
            if error.errno in _NOT_ACCEPTED:
                raise ConfigError(
                    f"the Ceph cluster of {options.conf_file} does not accept {options.user} (errno {error.errno}): is"
                    f" its key in {options.keyring_file or 'the keyring that ceph.conf names'}, the one that `ceph auth"
                    f" get {options.user}` shows, and of a type that librados on this machine knows (aes)?"
                ) from error
            if error.errno == errno.ETIMEDOUT:
                raise Transient(
                    f"no monitor of {options.conf_file} answers within {options.connect_timeout_ms} ms: check mon_host,"
                    " the network and that the monitors run"
                ) from error
            raise port_error(f"connecting to the Ceph cluster of {options.conf_file}", error) from error

    # --------------------------------------------------------------------------------------------------

    def _answer(self, prefix: str, code: int, answer: bytes, status: str) -> Any:
        if code < 0:
            raise self._failure(f"command `{prefix}` ({status})", rados_error(code))
        try:
            return json.loads(answer) if answer.strip() else None
        except ValueError as error:
            raise Transient(f"Ceph command `{prefix}` gave no JSON ({error}): is this Ceph older than 16.2?") from error

    def _open(self) -> Rados:
        if self._rados is None:
            raise ValueError("the connection to Ceph is closed")
        return self._rados

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        try:
            with binding.os_errors():
                yield
        except OSError as error:
            raise self._failure(action, error) from error

    def _failure(self, action: str, error: OSError) -> NosError:
        return port_error(f"Ceph cluster of {self._options.conf_file}: {action}", error)


class LogWatch:
    """A watch of the log that `RadosCluster.watch_log` began."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def close(self) -> None:
        """End it: on return the watcher is not called any more. Idempotent; not to be called by the watcher."""
        end, self._end = self._end, _nothing
        end()


def _nothing() -> None:
    """What a second close does."""


def _text(value: object) -> str:
    """The binding declares text, and gives bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _seconds(duration_ms: int) -> int:
    """Rounded up, as Ceph counts whole seconds."""
    return -(-duration_ms // 1000)
