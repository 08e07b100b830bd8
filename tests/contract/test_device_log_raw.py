"""The landing log on raw block devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from nos_ec.adapters.local.devices.device_file import DeviceFile
from nos_ec.adapters.local.devices.device_format import SLOTS_AT
from nos_ec.adapters.local.devices.device_log import DeviceLog
from nos_ec.core.errors import ConfigError
from nos_ec.ports.segment_medium import SegmentMedium
from tests.contract.suites.segment_medium_contract import SegmentMediumContract, new_segment
from tests.rig.device_log_work import STORE, batch
from tests.rig.loop_devices import grow, loop_device

SLOT = 256 << 10
SLOTS = 8
SIZE = SLOTS_AT + SLOTS * SLOT


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[list[Path]]:
    with ExitStack() as stack:
        yield [stack.enter_context(loop_device(tmp_path / f"disk-{number}", SIZE)) for number in range(2)]


def initialise(root: Path, devices: list[Path]) -> None:
    DeviceLog.initialise(root / "log", devices, STORE, slot_bytes=SLOT)


class TestTwoRawDevices(SegmentMediumContract):
    @pytest.fixture
    def open_medium(self, tmp_path: Path, devices: list[Path]) -> Callable[[], SegmentMedium]:
        initialise(tmp_path, devices)
        return lambda: DeviceLog(tmp_path / "log", devices, STORE, copies=2)


def test_a_raw_device_is_used_as_it_is(tmp_path: Path, devices: list[Path]) -> None:
    """Its size is its capacity, it may have any content after the first MiB, and growing it changes nothing."""
    device = devices[0]
    with device.open("r+b") as file:
        file.seek(SLOTS_AT)
        file.write(os.urandom(SLOT))
    initialise(tmp_path, [device])
    with closing(DeviceFile(device)) as raw:
        assert raw.direct
        assert raw.size() == SIZE
    grow(device, tmp_path / "disk-0", SIZE + 4 * SLOT)
    initialise(tmp_path, [device])
    with closing(DeviceLog(tmp_path / "log", [device], STORE)) as log:
        assert log.free_bytes() == SLOTS * (SLOT - 4096)
        segment = new_segment()
        writer = log.create(segment, 1, 0)
        laid = batch(segment, 4096)
        writer.append(4096, laid.buffers)
    with closing(DeviceLog(tmp_path / "log", [device], STORE)) as log:
        assert log.read(segment, [(4096, laid.size)]) == [b"".join(laid.buffers)]
        assert log.seal(segment, None, 0) == 4096 + laid.size


def test_a_device_in_use_is_refused(tmp_path: Path, devices: list[Path]) -> None:
    held = os.open(devices[0], os.O_RDWR | os.O_EXCL)  # as a mounted file system, a volume manager or an array does
    try:
        with pytest.raises(ConfigError, match="is in use"):
            initialise(tmp_path, devices)
    finally:
        os.close(held)
    initialise(tmp_path, devices)


def test_a_device_with_data_is_refused(tmp_path: Path, devices: list[Path]) -> None:
    with devices[1].open("r+b") as file:
        file.seek(1024)
        file.write(b"a file system begins here")
    with pytest.raises(ConfigError, match="holds data"):
        initialise(tmp_path, devices)
    with devices[1].open("rb") as file:
        assert file.read(1049)[1024:] == b"a file system begins here"


def test_a_device_without_superblocks_is_not_taken_for_a_blank_one(tmp_path: Path, devices: list[Path]) -> None:
    initialise(tmp_path, devices[:1])
    with closing(DeviceLog(tmp_path / "log", devices[:1], STORE)) as log:
        log.create(new_segment(), 1, 0)
    content = devices[0].read_bytes()
    with devices[0].open("r+b") as file:
        file.write(bytes(SLOTS_AT))
    with pytest.raises(ConfigError, match="no superblocks, but landing segments of this store"):
        DeviceLog.initialise(tmp_path / "log", devices[:1], STORE, slot_bytes=SLOT, new_devices=(0,), devices_min=1)
    with devices[0].open("r+b") as file:
        assert file.read() == bytes(SLOTS_AT) + content[SLOTS_AT:]
        file.seek(0)
        file.write(bytes(SIZE))
    DeviceLog.initialise(tmp_path / "log", devices[:1], STORE, slot_bytes=SLOT, new_devices=(0,), devices_min=1)


def test_a_device_that_is_not_there_is_not_made_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="connect the device"):
        initialise(tmp_path, [Path("/dev/nos-ec-no-such-device")])
    assert not Path("/dev/nos-ec-no-such-device").exists()
