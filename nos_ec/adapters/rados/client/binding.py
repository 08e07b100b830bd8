"""Finds and loads `rados`, the Python binding of librados, and declares the part of it that is used.

The binding is not in any package index. The distribution builds it for its own Python (Debian and Ubuntu:
python3-rados), and a virtual environment does not see it. Therefore this module looks for its file where the
distribution puts it, and loads that file. Adding the folder to the path would make all other packages of the
distribution visible, too.

The parts declared here are the same in the bindings of Ceph 16.2 and 20.2. Both have traps that the callers avoid:
  - `WriteOp.zero` swaps its arguments, and a zero of length 0 kills an OSD of 16.2: it is not declared here;
  - `Ioctx.aio_read` passes on a buffer of the full length, with random memory content, when 0 bytes were read;
  - when `Ioctx.list_objects` fails, it ends as if everything had been listed;
  - `Completion` gives no object version, and `Ioctx.get_last_version` returns that of the handle's last operation;
  - waiting for a completion without a callback needs no GIL in librados' threads; a callback does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from nos_ec.core.errors import ConfigError

CREATE_EXCLUSIVE = 1
FULL_TRY = 64
"""Flag of a write. On a full pool or cluster the write then fails at once (EDQUOT, ENOSPC), and a delete proceeds.
Without the flag, the write would wait for space until it times out."""

_MODULE = "rados"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_FOLDERS = (
    Path("/usr/lib/python3/dist-packages"),
    Path(f"/usr/lib64/python{_PYTHON}/site-packages"),
    Path(f"/usr/lib/python{_PYTHON}/site-packages"),
)
"""Where distributions put the binding: Debian and Ubuntu; Fedora, RHEL and openSUSE; Arch."""


class WriteOp(Protocol):
    """Steps that run in order, all or none."""

    def new(self, exclusive: int) -> None: ...
    def assert_version(self, version: int) -> None: ...
    def append(self, to_write: bytes) -> None: ...
    def write(self, to_write: bytes, offset: int = 0) -> None: ...
    def write_full(self, to_write: bytes) -> None: ...
    def set_xattr(self, xattr_name: str, xattr_value: bytes) -> None: ...
    def remove(self) -> None: ...


class Completion(Protocol):
    """An operation in flight. It keeps its own buffers alive."""

    def wait_for_complete(self) -> None: ...
    def wait_for_complete_and_cb(self) -> int: ...
    def get_return_value(self) -> int: ...


class ListedObject(Protocol):
    """An object in a listing."""

    @property
    def key(self) -> str: ...


class Ioctx(Protocol):
    """A handle on one namespace of one pool."""

    def set_namespace(self, nspace: str) -> None: ...
    def get_pool_id(self) -> int: ...
    def alignment(self) -> int | None: ...
    def get_stats(self) -> dict[str, int]: ...
    def get_last_version(self) -> int: ...
    def read(self, key: str, length: int, offset: int) -> bytes: ...
    def stat(self, key: str) -> tuple[int, object]: ...
    def get_xattr(self, key: str, xattr_name: str) -> bytes: ...
    def get_xattrs(self, oid: str) -> Iterable[tuple[str, bytes]]: ...
    def list_objects(self) -> Iterator[ListedObject]: ...
    def aio_read(
        self, object_name: str, length: int, offset: int, oncomplete: Callable[[Completion, bytes | None], None]
    ) -> Completion: ...
    def operate_write_op(self, write_op: WriteOp, oid: str, mtime: int, flags: int) -> None: ...
    def operate_aio_write_op(self, write_op: WriteOp, oid: str, *, flags: int) -> Completion: ...
    def close(self) -> None: ...


LogCallback = Callable[..., None]
"""Takes (argument, line, channel, who, name, seconds, nanoseconds, sequence, level, text), all texts as bytes."""


class Rados(Protocol):
    """A connection to a cluster."""

    def conf_read_file(self, path: str) -> None: ...
    def conf_set(self, option: str, val: str) -> None: ...
    def conf_get(self, option: str) -> str | None: ...
    def connect(self) -> None: ...
    def open_ioctx(self, ioctx_name: str) -> Ioctx: ...
    def open_ioctx2(self, pool_id: int) -> Ioctx: ...
    def get_addrs(self) -> str: ...
    def pool_lookup(self, pool_name: str) -> int | None: ...
    def mon_command(self, cmd: str, inbuf: bytes) -> tuple[int, bytes, str]: ...
    def osd_command(self, osdid: int, cmd: str, inbuf: bytes) -> tuple[int, bytes, str]: ...
    def monitor_log2(self, level: str, callback: LogCallback | None, arg: object) -> None: ...
    def shutdown(self) -> None: ...


class Binding(Protocol):
    """The module `rados`."""

    Error: type[Exception]

    def Rados(self, *, name: str, clustername: str) -> Rados: ...  # noqa: N802
    def WriteOpCtx(self) -> AbstractContextManager[WriteOp]: ...  # noqa: N802


@cache
def load() -> Binding:
    """Load the binding. Raises ConfigError, with advice on what to install, when there is none for this Python."""
    try:
        module = import_module(_MODULE) if _on_the_path() else _load_file(_installed_file())
    except ImportError as error:
        raise ConfigError(f"the Python binding of Ceph cannot be loaded ({error}): {_advice()}") from error
    if not hasattr(module, "WriteOpCtx"):
        raise ConfigError(f"{module!r} is not a Python binding of Ceph 16.2 or newer: {_advice()}")
    return cast(Binding, module)


@contextmanager
def os_errors() -> Iterator[None]:
    """Raise the binding's errors as OSError with librados' errno. Raises ValueError for the use of a closed handle."""
    binding = load()
    try:
        yield
    except binding.Error as error:
        code = getattr(error, "errno", None)
        if not code:
            raise ValueError(f"Ceph: {error}") from error
        raise OSError(abs(code), os.strerror(abs(code))) from error


def _on_the_path() -> bool:
    """Return whether this Python can import the binding: it is the system's Python, or an environment that sees its
    packages."""
    if _MODULE in sys.modules:
        return True
    return any((Path(folder) / f"{_MODULE}{suffix}").is_file() for folder in sys.path for suffix in EXTENSION_SUFFIXES)


def _installed_file() -> Path:
    for folder in _FOLDERS:
        for suffix in EXTENSION_SUFFIXES:
            if (file := folder / f"{_MODULE}{suffix}").is_file():
                return file
    raise ImportError("not found in " + ", ".join(map(str, _FOLDERS)))


def _load_file(file: Path) -> ModuleType:
    spec = spec_from_file_location(_MODULE, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not an extension module")
    module = module_from_spec(spec)
    # An extension is initialised once per process. Later imports of `rados` get this module.
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_MODULE]
        raise
    return module


def _advice() -> str:
    unfit = sorted(file for folder in _FOLDERS for file in folder.glob(f"{_MODULE}.*.so"))
    if unfit:
        return (
            f"{unfit[0]} is not for this Python ({_PYTHON}): run nos_ec with the Python that the distribution's"
            " python3-rados is built for, its /usr/bin/python3"
        )
    return (
        "install python3-rados of Ceph 16.2 or newer from your distribution (Debian, Ubuntu: apt-get install"
        f" python3-rados), and run nos_ec with the Python that it is built for; this is Python {_PYTHON}"
    )
