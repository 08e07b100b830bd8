"""Computes the placement group of an object in a Ceph pool. Every client computes it, without a request to a server.

    hash   Bob Jenkins' 32-bit hash of 1996 (public domain, "evahash") of the name, or of
           namespace 0x1f name in a namespace; pools call it `object_hash` 2, "rjenkins"
    group  hash stable_mod pg_num: as many low bits as pg_num - 1 has, or one bit fewer if that group does not exist
           yet. So a pool that grows from 2^n groups splits them into two each, one after another

Source: Ceph's documentation ("Object locator to PG", "stable_mod") and the article cited above. A test on a real
cluster compares the results with `ceph osd map`.
"""

from __future__ import annotations

RJENKINS = 2
"""The `object_hash` of the pools that this module handles; Ceph's only choice since 2010."""

_GOLDEN = 0x9E3779B9
_WORD = 0xFFFFFFFF
_NAMESPACE_END = b"\x1f"


def placement_group(name: str, namespace: str, group_count: int) -> int:
    """Return the number of the group, in [0, group_count). Raises ValueError for a pool without groups (a bug)."""
    if group_count < 1:
        raise ValueError(f"a pool of {group_count} placement groups")
    return stable_mod(object_hash(name, namespace), group_count)


def object_hash(name: str, namespace: str = "") -> int:
    """Return the 32-bit hash of an object's name."""
    prefix = namespace.encode() + _NAMESPACE_END if namespace else b""
    return _rjenkins(prefix + name.encode())


def stable_mod(value: int, count: int) -> int:
    """Return `value` modulo `count`, computed so that few values move when `count` grows by one."""
    mask = (1 << (count - 1).bit_length()) - 1
    found = value & mask
    return found if found < count else value & (mask >> 1)


def _rjenkins(data: bytes) -> int:
    """Return the hash. Each round takes twelve bytes as three little-endian words; the last round also takes the
    length."""
    a = b = _GOLDEN
    c = 0
    whole = len(data) - len(data) % 12
    for at in range(0, whole, 12):
        a += int.from_bytes(data[at : at + 4], "little")
        b += int.from_bytes(data[at + 4 : at + 8], "little")
        c += int.from_bytes(data[at + 8 : at + 12], "little")
        a, b, c = _mix(a, b, c)
    tail = data[whole:]
    a += int.from_bytes(tail[:4], "little")
    b += int.from_bytes(tail[4:8], "little")
    # The lowest byte of c holds the length; the last three bytes of a tail of 11 go above it.
    c += len(data) + (int.from_bytes(tail[8:], "little") << 8)
    return _mix(a, b, c)[2]


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for first, second, third in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = (a - b - c) & _WORD
        c &= _WORD
        a ^= c >> first
        b = (b - c - a) & _WORD
        b = (b ^ (a << second)) & _WORD
        c = (c - a - b) & _WORD
        c ^= b >> third
    return a, b, c
