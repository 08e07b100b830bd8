"""Header of a stripe group, on-disk format version 1 (see docs/FORMAT.md)."""

from __future__ import annotations

from nos_ec.core.geometry import PAGE

PREAMBLE_SIZE = 96
ENTRY_SIZE = 36
NAME_RECORD_FIXED = 4
"""Bytes of a name record beside the bucket's and the name's own bytes."""


def header_length(entry_count: int) -> int:
    """Bytes of the header of a group with that many entries: a multiple of PAGE."""
    return -(-(PREAMBLE_SIZE + ENTRY_SIZE * entry_count) // PAGE) * PAGE


def names_size_max(name_records_size: int) -> int:
    """Most bytes that zlib makes of that many bytes of name records (zlib's own compressBound)."""
    n = name_records_size
    return n + (n >> 12) + (n >> 14) + (n >> 25) + 13
