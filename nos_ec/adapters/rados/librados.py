"""The part of librados' C interface that the stores use, declared for ctypes.

Why not the python binding `rados`: it lacks the comparison of an xattr within a write (`rados_write_op_cmpxattr`) and
reads of several ranges in one operation (`rados_read_op_read`), on which appends and header scans rest, and it does not
give away its handles, so those calls could not be added to its connection. It is also built for one Python of one
distribution, whereas librados.so.2 serves any. docs/adr/0011-librados-through-ctypes.md has the whole story.

Functions that can fail return a negative errno. All of them release the GIL while they wait.
"""

from __future__ import annotations

import ctypes as c
from functools import cache
from typing import Any

from nos_ec.core.errors import ConfigError

Library = c.CDLL
Handle = c.c_void_p

CREATE_EXCLUSIVE = 1
COMPARE_EQUAL = 1
FULL_TRY = 64
"""Flag of a write: on a full pool or cluster fail at once (EDQUOT, ENOSPC) or, for a delete, go on. Without it the
write would wait for room until it times out."""

_SONAME = "librados.so.2"
_text, _handle, _size, _u64, _int = c.c_char_p, c.c_void_p, c.c_size_t, c.c_uint64, c.c_int
_out_handle, _out_text, _out_size = c.POINTER(c.c_void_p), c.POINTER(c.c_void_p), c.POINTER(c.c_size_t)


class PoolStat(c.Structure):
    """rados_pool_stat_t. `num_bytes` are bytes allocated on all OSDs of the pool."""

    _fields_ = [
        (name, c.c_uint64)
        for name in (
            "num_bytes",
            "num_kb",
            "num_objects",
            "num_object_clones",
            "num_object_copies",
            "num_objects_missing_on_primary",
            "num_objects_unfound",
            "num_objects_degraded",
            "num_rd",
            "num_rd_kb",
            "num_wr",
            "num_wr_kb",
            "num_user_bytes",
            "compressed_bytes_orig",
            "compressed_bytes",
            "compressed_bytes_alloc",
        )
    ]


_FALLIBLE = {
    "rados_create2": [_out_handle, _text, _text, _u64],
    "rados_conf_read_file": [_handle, _text],
    "rados_conf_set": [_handle, _text, _text],
    "rados_connect": [_handle],
    "rados_mon_command": [
        _handle, c.POINTER(_text), _size, _text, _size, _out_text, _out_size, _out_text, _out_size,
    ],
    "rados_osd_command": [
        _handle, _int, c.POINTER(_text), _size, _text, _size, _out_text, _out_size, _out_text, _out_size,
    ],
    "rados_ioctx_create": [_handle, _text, _out_handle],
    "rados_ioctx_pool_stat": [_handle, c.POINTER(PoolStat)],
    "rados_ioctx_pool_required_alignment2": [_handle, c.POINTER(_u64)],
    "rados_nobjects_list_open": [_handle, _out_handle],
    "rados_nobjects_list_next2": [_handle, _out_text, _out_text, _out_text, _out_size, _out_size, _out_size],
    "rados_write_op_operate": [_handle, _handle, _text, c.c_void_p, _int],
    "rados_read_op_operate": [_handle, _handle, _text, _int],
    "rados_aio_create_completion2": [c.c_void_p, c.c_void_p, _out_handle],
    "rados_aio_read_op_operate": [_handle, _handle, _handle, _text, _int],
    "rados_aio_write_op_operate": [_handle, _handle, _handle, _text, c.c_void_p, _int],
    "rados_aio_wait_for_complete": [_handle],
    "rados_aio_get_return_value": [_handle],
    "rados_getxattr": [_handle, _text, _text, c.c_void_p, _size],
}  # fmt: skip
_SILENT = {
    "rados_shutdown": [_handle],
    "rados_buffer_free": [c.c_void_p],
    "rados_ioctx_destroy": [_handle],
    "rados_ioctx_set_namespace": [_handle, _text],
    "rados_nobjects_list_close": [_handle],
    "rados_release_write_op": [_handle],
    "rados_write_op_assert_exists": [_handle],
    "rados_write_op_cmpxattr": [_handle, _text, c.c_uint8, c.c_void_p, _size],
    "rados_write_op_setxattr": [_handle, _text, c.c_void_p, _size],
    "rados_write_op_create": [_handle, _int, _text],
    "rados_write_op_append": [_handle, c.c_void_p, _size],
    "rados_write_op_write_full": [_handle, c.c_void_p, _size],
    "rados_write_op_remove": [_handle],
    "rados_release_read_op": [_handle],
    "rados_read_op_assert_exists": [_handle],
    "rados_read_op_stat": [_handle, c.POINTER(_u64), c.c_void_p, c.c_void_p],
    "rados_read_op_read": [_handle, _u64, _size, c.c_void_p, c.c_void_p, c.c_void_p],
    "rados_aio_release": [_handle],
}
_MAKERS: dict[str, list[Any]] = {"rados_create_write_op": [], "rados_create_read_op": []}
_NUMBERS = {"rados_pool_lookup": [_handle, _text], "rados_ioctx_get_id": [_handle]}


@cache
def load() -> Library:
    """The library, with every function declared. Raises ConfigError when it is not installed."""
    try:
        library = c.CDLL(_SONAME)
        for table, result in ((_FALLIBLE, c.c_int), (_SILENT, None), (_MAKERS, c.c_void_p), (_NUMBERS, c.c_int64)):
            for name, arguments in table.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ConfigError(
            f"Ceph's client library cannot be used ({error}): install librados2 16.2 or newer from your distribution"
            " (Debian, Ubuntu, Fedora, openSUSE: the package librados2)"
        ) from error
    return library
