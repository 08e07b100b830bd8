"""A connection to a Ceph cluster, and commands to its monitors.

Every operation has a time limit, set before the connection is made. Without one, an operation on a placement group that
is not active would wait forever.
"""

from __future__ import annotations

import errno
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import structlog

from nos_ec.adapters.rados.client import binding
from nos_ec.adapters.rados.client.binding import Rados
from nos_ec.adapters.rados.client.failures import port_error, rados_error
from nos_ec.adapters.rados.client.pool import Pool
from nos_ec.core.errors import ConfigError, NosError, Transient

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RadosOptions:
    """How to reach a cluster. Raises ConfigError for invalid values.

    `conf_file` is the cluster's ceph.conf, which needs only `mon_host`. `user` is a full name such as
    client.nos-ec-consumer. `keyring_file` holds the user's key; without it, Ceph looks where ceph.conf or its own
    defaults point. `op_timeout_ms` limits each read or write, which then raises Transient. `connect_timeout_ms` limits
    connecting, and each command to the monitors. Both are rounded up, because Ceph counts whole seconds.
    """

    conf_file: Path
    user: str
    keyring_file: Path | None = None
    op_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000

    def __post_init__(self) -> None:
        if not self.user.startswith("client.") or self.user == "client.":
            raise ConfigError(f"Ceph user {self.user!r}: use its full name, such as client.nos-ec-consumer")
        for name, value in (("op_timeout_ms", self.op_timeout_ms), ("connect_timeout_ms", self.connect_timeout_ms)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; use 1 or more: an operation without a limit can hang forever")


_LAGGY_S_MAX, _LAGGY_SHARE = 2, 4
"""When an operation takes longer than _LAGGY_S_MAX seconds, or than its time limit divided by _LAGGY_SHARE (whichever
is shorter), librados requests a newer map of the OSDs from the monitors, and repeats this at the same interval. So an
operation that an OSD dropped, because its placement group moved or its pool was deleted, is sent elsewhere or fails
with the reason. With Ceph's own settings, this would begin after 10 s, when the time limit is used up."""

LOG_LEVEL = "info"

LogWatcher = Callable[[str, str, str], None]
"""A callback for entries of the cluster's log. It takes (channel, level, text), such as ("cluster", "[WRN]", "osd.3
failed ...")."""


_NOT_ACCEPTED = frozenset({errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.EIO})
"""Errors of a connection attempt with a key that is wrong, unknown, of a type that librados does not know, or not
parsable (EIO)."""


class RadosCluster:
    """A connection that the stores of a process share. Safe to call from several threads.

    Connecting raises ConfigError when the binding, ceph.conf, the keyring or the key is wrong, and Transient when the
    monitors do not answer in time. Before `close`, close the stores and let all calls finish, because `close` ends
    librados' threads.
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
            # Ceph identifies a process by these addresses, for example in `ceph osd blocklist ls`.
            _log.info("connected to Ceph", user=options.user, addresses=rados.get_addrs())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_pool(self, name: str, namespace: str = "") -> Pool:
        """Open a pool, or one namespace of it. Raises ConfigError when there is no such pool, Transient."""
        rados = self._open()
        with self._errors(f"opening pool {name}"):
            try:
                with binding.os_errors():
                    ioctx = rados.open_ioctx(name)
                    ioctx.set_namespace(namespace)
                    pool = Pool(rados, ioctx, name, namespace, _seconds(self._options.op_timeout_ms))
            except FileNotFoundError as error:
                raise ConfigError(
                    f"the Ceph cluster of {self._options.conf_file} has no pool {name}: create it as docs/CEPH.md"
                    " describes, or correct the configuration"
                ) from error
        self._pools.append(pool)
        return pool

    def pool_id(self, name: str) -> int:
        """Return the number of a pool. Raises ConfigError when there is no such pool, Transient."""
        rados = self._open()
        with self._errors(f"looking up pool {name}"):
            found = rados.pool_lookup(name)
        if found is None:
            raise ConfigError(f"Ceph pool {name} no longer exists: restore it or correct the configuration")
        return found

    def command(self, prefix: str, **arguments: str | int | float | list[str]) -> Any:
        """Return the monitors' JSON answer to a command such as "df"; None if the command has no answer.

        Raises ConfigError, Transient."""
        request = json.dumps({"prefix": prefix, "format": "json", **arguments})
        with self._errors(f"command `{prefix}`"):
            return self._answer(prefix, *self._open().mon_command(request, b""))

    def command_osd(self, osd: int, prefix: str, **arguments: str | int | float | list[str]) -> Any:
        """Return the JSON answer of one OSD to a command such as "perf dump". Needs an administrator's caps.

        Raises ConfigError, Transient."""
        request = json.dumps({"prefix": prefix, "format": "json", **arguments})
        with self._errors(f"command `{prefix}`"):
            return self._answer(prefix, *self._open().osd_command(osd, request, b""))

    def watch_log(self, watcher: LogWatcher) -> LogWatch:
        """Make the monitors push each new entry of the cluster's log, of level info and above, to `watcher`.

        `watcher` is called in a thread of librados that holds the connection's lock. It must not raise, wait or use
        this cluster; it hands over to another thread instead. Entries are lost while the connection to the monitors is
        down, so a caller that must not miss a change also has to poll. Only one watch can exist at a time. Raises
        ConfigError, Transient.
        """
        rados = self._open()

        def take(*entry: object) -> None:
            _, _, channel, *_, level, text = entry
            watcher(_text(channel), _text(level), _text(text))

        with self._closing:
            if self._watched:
                raise ValueError("the log of this cluster is already being watched: close that watch first")
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
        """Close the connection, and all pools that are open on it. Idempotent."""
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
        _require_readable(options.conf_file, "the cluster's ceph.conf")
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
            # Errors are raised as exceptions. A library must not write to the standard error of its process, nor create
            # sockets.
            "log_to_stderr": "false",
            "err_to_stderr": "false",
            "admin_socket": "",
        }
        if options.keyring_file is not None:
            _require_readable(options.keyring_file, f"{options.user}'s keyring")
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
                    f"{options.conf_file} names no monitor, or there is no keyring: set mon_host in it, and check"
                    f" that the keyring of {options.user} exists"
                ) from error
            invalid = error.errno == errno.EINVAL
            if invalid and (names := _unresolved(rados.conf_get("mon_host") or "")):
                raise Transient(
                    f"mon_host in {options.conf_file}: {', '.join(names)} cannot be resolved: check the names of the"
                    " monitors, and that the name server answers"
                ) from error
            if error.errno in _NOT_ACCEPTED:
                raise ConfigError(
                    f"the Ceph cluster of {options.conf_file} does not accept {options.user} (errno {error.errno}):"
                    f" check that its key in {options.keyring_file or 'the keyring that ceph.conf names'} is the one"
                    f" that `ceph auth get {options.user}` shows, and of a type that librados on this machine knows"
                    " (aes)" + "; check that mon_host has names, or addresses such as [v2:10.0.0.1:3300]" * invalid
                ) from error
            if error.errno == errno.ETIMEDOUT:
                raise Transient(
                    f"no monitor of {options.conf_file} answered within {options.connect_timeout_ms} ms: check mon_host"
                    " and the network, and that the monitors run"
                ) from error
            raise port_error(f"connecting to the Ceph cluster of {options.conf_file}", error) from error

    # --------------------------------------------------------------------------------------------------

    def _answer(self, prefix: str, code: int, answer: bytes, status: str) -> Any:
        if code < 0:
            raise self._failure(f"command `{prefix}` ({status})", rados_error(code))
        try:
            return json.loads(answer) if answer.strip() else None
        except ValueError as error:
            raise Transient(
                f"Ceph command `{prefix}` did not return JSON ({error}): check that Ceph is not older than 16.2"
            ) from error

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
    """A watch of the log, started by `RadosCluster.watch_log`."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def close(self) -> None:
        """End the watch, so that the watcher is not called again. Idempotent. The watcher itself must not call this."""
        end, self._end = self._end, _nothing
        end()


def _require_readable(path: Path, what: str) -> None:
    """Raise ConfigError unless this process can read the file."""
    try:
        if not path.is_file():
            raise ConfigError(f"{path} does not exist: configure the path of {what}")
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): let the user of this process read it, or configure another path"
            f" of {what}"
        ) from error


def _unresolved(mon_host: str) -> list[str]:
    """Return the names of monitors that cannot be resolved now. If one cannot, librados refuses the whole list with the
    same error as for a bad key. It accepts no names after `v1:` or `v2:`."""
    found = []
    for word in re.split(r"[\s,;]+", mon_host):
        name = word.partition(":")[0]
        if name in ("", "v1", "v2") or word.startswith("["):
            continue
        try:
            socket.getaddrinfo(name, None)
        except socket.gaierror:
            found.append(name)
        except UnicodeError:
            continue  # not a valid host name
    return found


def _nothing() -> None:
    """Do nothing: replaces the end of the watch after the first close."""


def _text(value: object) -> str:
    """Decode a text from the binding, which declares str but passes bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _seconds(duration_ms: int) -> int:
    """Return a duration in seconds, rounded up, because Ceph counts whole seconds."""
    return -(-duration_ms // 1000)
