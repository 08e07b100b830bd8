"""A connection to a Ceph cluster, and what the monitors tell.

Every operation has a time limit, set before the connection is made: without one, an operation on a placement group
that is not active waits for ever.
"""

from __future__ import annotations

import ctypes as c
import errno
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nos_ec.adapters.rados import librados
from nos_ec.adapters.rados.failures import port_error, rados_error
from nos_ec.adapters.rados.pool import Pool
from nos_ec.core.errors import ConfigError, NosError, Transient


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
    op_timeout_ms: int = 30_000
    connect_timeout_ms: int = 15_000

    def __post_init__(self) -> None:
        if not self.user.startswith("client.") or self.user == "client.":
            raise ConfigError(f"Ceph user {self.user!r}: give its whole name, such as client.nos-ec-consumer")
        for name, value in (("op_timeout_ms", self.op_timeout_ms), ("connect_timeout_ms", self.connect_timeout_ms)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; give 1 or more: an operation without a limit can hang for ever")


class RadosCluster:
    """A connection, to be shared by the stores of a process. Safe to call from several threads.

    Connecting raises ConfigError when the library, ceph.conf, the keyring or the key is wrong, Transient when the
    monitors do not answer in time. Close the stores first, and have no call under way: closing ends librados' threads.
    """

    def __init__(self, options: RadosOptions) -> None:
        self._library = librados.load()
        self._options = options
        self._closing = threading.Lock()
        self._pools: list[Pool] = []
        handle = librados.Handle()
        self._check(self._library.rados_create2(c.byref(handle), b"ceph", options.user.encode(), 0), "connecting")
        self._handle: librados.Handle | None = handle
        try:
            self._configure(handle)
            self._connect(handle)
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
        handle = librados.Handle()
        code = self._library.rados_ioctx_create(self._open_handle(), name.encode(), c.byref(handle))
        if code == -errno.ENOENT:
            raise ConfigError(
                f"the Ceph cluster of {self._options.conf_file} has no pool {name}: make it as docs/CEPH.md says, or"
                " correct the configuration"
            )
        self._check(code, f"opening pool {name}")
        if namespace:
            self._library.rados_ioctx_set_namespace(handle, namespace.encode())
        pool = Pool(self._library, self._open_handle(), handle, name)
        self._pools.append(pool)
        return pool

    def command(self, prefix: str, **arguments: str | int) -> Any:
        """The JSON answer of the monitors to a command such as "df"; None to one without an answer.

        Raises ConfigError, Transient."""
        return self._command(self._library.rados_mon_command, [], prefix, arguments)

    def command_osd(self, osd: int, prefix: str) -> Any:
        """The JSON answer of one OSD to a command such as "perf dump". Needs an administrator's caps.

        Raises ConfigError, Transient."""
        return self._command(self._library.rados_osd_command, [osd], prefix, {})

    def close(self) -> None:
        """Close what is open. Idempotent."""
        with self._closing:
            handle, self._handle = self._handle, None
        if handle is not None:
            for pool in self._pools:
                pool.close()
            self._library.rados_shutdown(handle)

    # --- connecting -----------------------------------------------------------------------------------

    def _configure(self, handle: librados.Handle) -> None:
        options = self._options
        if not options.conf_file.is_file():
            raise ConfigError(f"{options.conf_file} does not exist: give the path of the cluster's ceph.conf")
        code = self._library.rados_conf_read_file(handle, str(options.conf_file).encode())
        if code < 0:
            raise ConfigError(f"{options.conf_file} cannot be read as a ceph.conf (errno {-code}): correct it")
        settings = {
            "rados_osd_op_timeout": _seconds(options.op_timeout_ms),
            "rados_mon_op_timeout": _seconds(options.connect_timeout_ms),
            "client_mount_timeout": _seconds(options.connect_timeout_ms),
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
            self._check(self._library.rados_conf_set(handle, name.encode(), value.encode()), f"setting {name}")

    def _connect(self, handle: librados.Handle) -> None:
        code = -self._library.rados_connect(handle)
        options = self._options
        if code in (errno.EPERM, errno.EACCES, errno.ENOENT, errno.EINVAL, errno.ENOTSUP):
            raise ConfigError(
                f"the Ceph cluster of {options.conf_file} does not accept {options.user} (errno {code}): is its key in"
                f" {options.keyring_file or 'the keyring that ceph.conf names'}, the one that `ceph auth get"
                f" {options.user}` shows, and of a type that librados on this machine knows (aes)?"
            )
        if code == errno.ETIMEDOUT:
            raise Transient(
                f"no monitor of {options.conf_file} answers within {options.connect_timeout_ms} ms: check mon_host, the"
                " network and that the monitors run"
            )
        if code > 0:
            raise port_error(f"connecting to the Ceph cluster of {options.conf_file}", rados_error(-code))

    # --- commands -------------------------------------------------------------------------------------

    def _command(
        self, function: Callable[..., int], target: Sequence[int], prefix: str, arguments: Mapping[str, str | int]
    ) -> Any:
        request = {"prefix": prefix, "format": "json", **arguments}
        commands = (c.c_char_p * 1)(json.dumps(request).encode())
        output, status = c.c_void_p(), c.c_void_p()
        output_size, status_size = c.c_size_t(), c.c_size_t()
        code = function(
            self._open_handle(), *target, commands, 1, b"", 0,
            c.byref(output), c.byref(output_size), c.byref(status), c.byref(status_size),
        )  # fmt: skip
        answer, text = self._taken(output, output_size), self._taken(status, status_size)
        if code < 0:
            raise self._failure(code, f"command `{prefix}` ({text.decode(errors='replace')})")
        try:
            return json.loads(answer) if answer.strip() else None
        except ValueError as error:
            raise Transient(f"Ceph command `{prefix}` gave no JSON ({error}): is this Ceph older than 16.2?") from error

    def _taken(self, pointer: c.c_void_p, size: c.c_size_t) -> bytes:
        """Copy what librados allocated, and free it."""
        if not pointer:
            return b""
        try:
            return c.string_at(pointer, size.value)
        finally:
            self._library.rados_buffer_free(pointer)

    def _open_handle(self) -> librados.Handle:
        if self._handle is None:
            raise ValueError("the connection to Ceph is closed")
        return self._handle

    def _check(self, code: int, action: str) -> None:
        if code < 0:
            raise self._failure(code, action)

    def _failure(self, code: int, action: str) -> NosError:
        return port_error(f"Ceph cluster of {self._options.conf_file}: {action}", rados_error(code))


def _seconds(duration_ms: int) -> str:
    return str(-(-duration_ms // 1000))
