"""What librados' error numbers mean to a caller of a port."""

from __future__ import annotations

import errno
import os

from nos_ec.core.errors import Blocklisted, ConfigError, Corrupt, NosError, NoSpace, Transient

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""A full pool, and one over a quota of bytes or objects. An OSD that answers so has done nothing."""
_DENIED = frozenset({errno.EPERM, errno.EACCES})
_BLOCKLISTED = errno.ESHUTDOWN


def port_error(action: str, error: OSError) -> NosError:
    """The error a port declares for this one of librados; its message starts with `action`.

    What only the caller can tell - ENOENT, EEXIST, ECANCELED - is not decided here: such a code that nobody
    expected counts as Transient, as every unknown one.
    """
    code = error.errno or 0
    if code == errno.ETIMEDOUT:
        return Transient(
            f"{action}: no answer from Ceph in time; see `ceph health detail` for OSDs that are down and for placement"
            " groups that are not active, then try again"
        )
    if code in NO_SPACE:
        return NoSpace(f"{action}: the pool is full or over its quota; add OSDs or let garbage collection make room")
    if code in _DENIED:
        return ConfigError(f"{action}: Ceph denies it to this user; give it the caps that docs/CEPH.md lists")
    if code == errno.EIO:
        return Corrupt(f"{action}: Ceph cannot read it (EIO): more chunks are lost or damaged than it can make up for")
    if code == errno.EFBIG:
        return ConfigError(f"{action}: over osd_max_object_size; raise that in Ceph, or use smaller blocks")
    if code == errno.EMSGSIZE:
        return ConfigError(f"{action}: over osd_max_write_size; raise that in Ceph, or use smaller stripe groups")
    if code == _BLOCKLISTED:
        return Blocklisted(f"{action}: Ceph has put this process on its blocklist; restart the process")
    return Transient(f"{action}: {os.strerror(code)} (errno {code}); try again")


def rados_error(code: int) -> OSError:
    """A return code of librados (negative) as an exception; Python picks the subclass, such as FileNotFoundError."""
    return OSError(-code, os.strerror(-code))
