"""The memory that devices are written from. What is read and written is tested with the device log."""

from __future__ import annotations

import ctypes

import pytest

from nos_ec.adapters.local.devices import device_file
from nos_ec.adapters.local.devices.device_file import page_buffer
from nos_ec.core.formats.landing_format import NAMES_SIZE_MAX, RECORD_HEADER_SIZE
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.packing.packer import size_max


@pytest.fixture(autouse=True)
def empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_file, "_pool", [])


def address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def test_buffers_in_use_at_once_are_different_and_begin_at_a_page() -> None:
    with page_buffer(PAGE) as one, page_buffer(3 * PAGE) as other:
        one[:] = b"1" * PAGE
        other[:] = b"2" * (3 * PAGE)
        assert bytes(one) == b"1" * PAGE
        assert address(one) % PAGE == address(other) % PAGE == 0


@pytest.mark.parametrize("size", [PAGE, 1 << 20, size_max(Geometry())])
def test_memory_is_used_again_for_whatever_is_landed(size: int) -> None:
    whole = -(-(size + RECORD_HEADER_SIZE + NAMES_SIZE_MAX) // PAGE) * PAGE
    with page_buffer(whole) as buffer:
        first = address(buffer)
    with page_buffer(whole) as buffer:
        assert address(buffer) == first


def test_little_memory_is_kept() -> None:
    buffers = [page_buffer(PAGE) for _ in range(20)]
    for buffer in buffers:
        buffer.__enter__()
    for buffer in buffers:
        buffer.__exit__(None, None, None)
    with page_buffer(64 << 20):
        pass
    assert len(device_file._pool) == device_file._POOLED_COUNT
    assert {len(memory) for memory in device_file._pool} == {device_file._POOLED_BYTES}
