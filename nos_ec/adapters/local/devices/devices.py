"""The devices of a landing log: initialising, recognising and opening them, and their superblocks."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from nos_ec.adapters.file_system import open_new
from nos_ec.adapters.local.devices.device_file import DeviceFile, open_direct, page_buffer
from nos_ec.adapters.local.devices.device_format import (
    DEVICES_MAX,
    SLOT_BYTES_MIN,
    SLOTS_AT,
    SLOTS_MAX,
    SUPERBLOCK_MAGIC,
    SUPERBLOCKS,
    Superblock,
    decode_superblock,
    encode_superblock,
    owner_of_slot,
)
from nos_ec.adapters.local.devices.device_lives import read_lives, record_lives, refuse_replaced
from nos_ec.adapters.local.devices.slot_table import SlotTable
from nos_ec.adapters.local.files.durable import locked, make_folder, sync_folder, translated, write_at
from nos_ec.core.errors import ConfigError, Corrupt
from nos_ec.core.geometry import PAGE
from nos_ec.core.killpoints import kill_point

SLOT_BYTES = 8 << 20
FILE_BYTES = 32 * SLOT_BYTES + SLOTS_AT
_ZEROS = 4 << 20
_DEVICE_NODES = Path("/dev")


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A device that works, and its superblock."""

    file: DeviceFile
    superblock: Superblock


def store_id_of(store_id: str) -> bytes:
    """Return the store id of the metadata as 16 bytes. Raises ValueError."""
    raw = bytes.fromhex(store_id)
    if len(raw) != 16:
        raise ValueError(f"store id {store_id!r} has {len(raw)} bytes, not 16")
    return raw


# --- opening ----------------------------------------------------------------------------------------
def open_device(path: Path, store_id: bytes, lives: Mapping[int, int]) -> OpenDevice | None:
    """Open a device. Returns None for a lost device, which does not exist or cannot be read. `lives` are the lives of
    replaced devices. Raises ConfigError when it is not a device of this store's landing log, or was replaced, Transient
    when this process may not open it."""
    try:
        file = DeviceFile(path)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            with translated(f"landing log {path}"):
                raise
        return None
    try:
        superblock = _superblock_of(file, store_id)
        if superblock is None:
            raise ConfigError(f"{path} is not a device of the landing log: run `nos-ec init`, or connect the right one")
        refuse_replaced(path, superblock, lives)
        if file.size() < superblock.capacity:
            raise ConfigError(
                f"{path} has {file.size()} bytes, but was initialised with {superblock.capacity}: connect the right"
                " device, or restore the file"
            )
    except OSError:
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    return OpenDevice(file, superblock)


def open_devices(paths: Sequence[Path], store_id: bytes, lives: Mapping[int, int]) -> dict[int, OpenDevice]:
    """Open the devices that can be read. Returns them by number. `lives` are the lives of replaced devices. Raises
    ConfigError when one of them is not of this store or was replaced, one is given twice, or none can be read;
    Transient."""
    found: dict[int, OpenDevice] = {}
    try:
        for path in paths:
            device = open_device(path, store_id, lives)
            if device is None:
                continue
            number = device.superblock.device
            if number in found:
                device.file.close()
                raise ConfigError(f"{found[number].file.path} and {path} are the same device: name each once")
            found[number] = device
        if not found:
            names = ", ".join(map(str, paths))
            raise ConfigError(f"no device of the landing log can be read: run `nos-ec init`, or connect {names}")
    except BaseException:
        for device in found.values():
            device.file.close()
        raise
    return found


def device_count(found: Mapping[int, OpenDevice]) -> int:
    """Return the number of the log's devices, including lost ones."""
    return max(device.superblock.devices for device in found.values())


def device_count_now(device: OpenDevice) -> int:
    """Return the present number of the log's devices, because others may have been added since this one was opened.
    Raises ConfigError, OSError."""
    found = _superblock_of(device.file, device.superblock.store_id)
    return device.superblock.devices if found is None else found.devices


def _superblock_of(file: DeviceFile, store_id: bytes | None) -> Superblock | None:
    """Return the valid superblock; None when the first MiB is zeros, so that the device is empty. Raises ConfigError
    for foreign data, and when both superblocks are damaged; OSError. `store_id` is None for a new store.

    When only one can be read, the other one may be newer. Everything except `clean` is the same in both, because a
    change of the number of devices is written twice.
    """
    valid, reasons, errors = [], [], []
    for at in SUPERBLOCKS:
        try:
            valid.append(decode_superblock(file.read(at, PAGE)))
        except Corrupt as error:
            reasons.append(str(error))
        except OSError as error:
            errors.append(error)
    if not valid and errors:
        raise errors[0]
    if not valid and any(file.read(at, len(SUPERBLOCK_MAGIC)) == SUPERBLOCK_MAGIC for at in SUPERBLOCKS):
        raise ConfigError(
            f"{file.path} is a device of a landing log, but both of its superblocks are damaged ({'; '.join(reasons)}):"
            " restore its first 8 KiB; if you cannot, replace the device (docs/RUNBOOKS.md: A device of the landing log"
            " is lost)"
        )
    if not valid:
        if any(file.read(0, SLOTS_AT)):
            raise ConfigError(
                f"{file.path} holds data that does not belong to a landing log ({'; '.join(reasons)}): choose another"
                f" device, or if the data is not needed, clear it: dd if=/dev/zero of={file.path} bs=1M count=1"
                " conv=notrunc"
            )
        return None
    superblock = max(valid, key=lambda each: each.generation)
    if superblock.store_id != store_id:
        this = "which is new" if store_id is None else store_id.hex()
        raise ConfigError(
            f"{file.path} belongs to the landing log of another store ({superblock.store_id.hex()}), not to this one"
            f" ({this}): connect the right device, or set the right store.metadata_url"
        )
    return replace(superblock, clean=superblock.clean and len(valid) == len(SUPERBLOCKS))


def write_superblock(device: OpenDevice, *, devices: int | None = None, clean: bool | None = None) -> OpenDevice:
    """Write the next generation of a superblock, durably, to the place of the older one. The table of slots must be
    locked. Raises ConfigError, OSError."""
    found = _superblock_of(device.file, device.superblock.store_id)
    if found is None:
        raise ConfigError(f"{device.file.path} lost its superblocks: connect the right device")
    following = replace(
        found,
        devices=found.devices if devices is None else devices,
        clean=found.clean if clean is None else clean,
        generation=found.generation + 1,
    )
    if following.devices == found.devices:
        _put_superblock(device.file, following)
    else:
        following = _put_twice(device.file, following)
    return OpenDevice(device.file, following)


def _put_twice(file: DeviceFile, superblock: Superblock) -> Superblock:
    """Write this generation and the next one, so that both superblocks contain everything that must not be lost."""
    _put_superblock(file, superblock)
    following = replace(superblock, generation=superblock.generation + 1)
    _put_superblock(file, following)
    return following


def _put_superblock(file: DeviceFile, superblock: Superblock) -> None:
    file.write_page(SUPERBLOCKS[superblock.generation % len(SUPERBLOCKS)], encode_superblock(superblock))
    kill_point("device_log.superblock_written")


# --- initialising -----------------------------------------------------------------------------------
def initialise(
    folder: Path,
    paths: Sequence[Path],
    store_id: str,
    *,
    slot_bytes: int = SLOT_BYTES,
    file_bytes: int = FILE_BYTES,
    window_bytes: int | None = None,
    new_devices: Collection[int] = (),
    devices_min: int = 0,
) -> None:
    """Create or extend a landing log on devices, durably. Idempotent.

    `folder` belongs to the store, and holds the files that its processes share. `paths` are raw devices, or files,
    which are created with `file_bytes` of zeros each. `window_bytes` must be larger than the largest batch; without it,
    a scan for the end of a segment reads its whole slot. Capacity and sizes are fixed here. A path that is not part of
    the log yet becomes a further device. `new_devices` are numbers of devices that are lost for good; blank ones take
    their numbers. `devices_min` is the number of devices that the log is known to have at least. Raises ConfigError
    when a path holds anything else, is in use (for example mounted), or a device is missing that was not named;
    NoSpace, Transient. If several processes call this, one creates the log and the others wait for it.
    """
    raw_id = store_id_of(store_id)
    _check_sizes(paths, slot_bytes, file_bytes)
    with translated(f"landing log {folder}"):
        make_folder(folder)
        with locked(folder), ExitStack() as stack:
            lives = read_lives(folder)
            found = _find_devices(paths, raw_id, slot_bytes, lives, stack)
            known = [device for device in found.values() if device is not None]
            blank = [path for path, device in found.items() if device is None]
            count = max((device.superblock.devices for device in known), default=devices_min)
            for path, number in zip(blank, _numbers(known, count, len(blank), new_devices), strict=True):
                file, capacity = _make_blank(path, file_bytes)
                stack.callback(file.close)
                count = max(count, number + 1)
                life = lives.get(number, 0) + (number in new_devices)
                known.append(
                    _make_device(file, capacity, raw_id, number, count, slot_bytes, window_bytes or slot_bytes, life)
                )
            record_lives(folder, {device.superblock.device: device.superblock.life for device in known})
            with closing(SlotTable(folder)) as table, table.locked():
                for device in known:
                    if device.file.path in blank:
                        table.unload_device(device.superblock.device)
                    if device.superblock.devices < count:
                        write_superblock(device, devices=count)


def check(folder: Path, paths: Sequence[Path], store_id: str | None, *, slot_bytes: int = SLOT_BYTES) -> None:
    """Raise the errors of `initialise` for a path that holds anything but a device of this store's log, and for another
    size of its slots. Changes nothing. `store_id` is None for a new store, to which no device belongs."""
    raw_id = None if store_id is None else store_id_of(store_id)
    with translated(f"landing log {folder}"), ExitStack() as stack:
        _find_devices(paths, raw_id, slot_bytes, read_lives(folder), stack)


def _find_devices(
    paths: Sequence[Path], store_id: bytes | None, slot_bytes: int, lives: Mapping[int, int], stack: ExitStack
) -> dict[Path, OpenDevice | None]:
    """Call `_find_device` for each path, and check that the devices match the configuration."""
    found = {path: _find_device(path, store_id, slot_bytes, stack) for path in paths}
    for device in found.values():
        if device is not None:
            _require(device, slot_bytes)
            refuse_replaced(device.file.path, device.superblock, lives)
    return found


def _check_sizes(paths: Sequence[Path], slot_bytes: int, file_bytes: int) -> None:
    if not 1 <= len(paths) <= DEVICES_MAX:
        raise ConfigError(f"a landing log has 1 to {DEVICES_MAX} devices, not {len(paths)}")
    if slot_bytes % PAGE or slot_bytes < SLOT_BYTES_MIN:
        raise ConfigError(f"slots of {slot_bytes} bytes: choose a multiple of {PAGE}, at least {SLOT_BYTES_MIN}")
    if file_bytes % PAGE:
        raise ConfigError(f"files of {file_bytes} bytes: choose a multiple of {PAGE}")


def _require(device: OpenDevice, slot_bytes: int) -> None:
    if device.superblock.slot_bytes != slot_bytes:
        raise ConfigError(
            f"{device.file.path} has slots of {device.superblock.slot_bytes} bytes, but the configuration says"
            f" {slot_bytes}: configure the size that it has"
        )


def _numbers(known: Sequence[OpenDevice], count: int, blank: int, new_devices: Collection[int]) -> list[int]:
    """Return the numbers of the blank devices: first those that are lost for good, then further ones."""
    present = {device.superblock.device for device in known}
    if len(present) < len(known):
        raise ConfigError("a device of the landing log is named twice: name each once")
    missing = set(range(count)) - present
    if wrong := sorted(set(new_devices) - missing):
        raise ConfigError(
            f"device {wrong[0]} of the landing log is not missing: use --new-device only for one that is lost"
        )
    if blank and (unnamed := sorted(missing - set(new_devices))):
        raise ConfigError(
            f"device {unnamed[0]} of the landing log is missing: connect it, or if it is lost for good, run"
            f" `nos-ec init --new-device {unnamed[0]}`"
        )
    numbers = sorted(new_devices)
    if len(numbers) > blank:
        raise ConfigError(f"device {numbers[-1]} of the landing log is to be replaced, but no blank device is named")
    return [*numbers, *range(count, count + blank - len(numbers))]


def _find_device(path: Path, store_id: bytes | None, slot_bytes: int, stack: ExitStack) -> OpenDevice | None:
    """Return the device of this log at a path, which `stack` closes; None when there is none. `store_id` is None for a
    log without devices. Raises ConfigError for anything else, OSError."""
    try:
        file = DeviceFile(path)
    except FileNotFoundError:
        if path.parent.is_dir() and path.parent.stat().st_dev == _DEVICE_NODES.stat().st_dev:
            raise ConfigError(f"{path} does not exist: connect the device") from None
        return None
    stack.callback(file.close)
    superblock = _superblock_of(file, store_id)
    if superblock is not None:
        return OpenDevice(file, superblock)
    if _is_raw(path):
        _refuse_used(path)
        if store_id is not None:
            _refuse_slots(file, store_id, slot_bytes)
    else:
        _refuse_data(file)
    return None


def _make_blank(path: Path, file_bytes: int) -> tuple[DeviceFile, int]:
    """Return a blank device, and its capacity. Raises OSError."""
    if path.exists() and _is_raw(path):
        file = DeviceFile(path)
        return file, file.size() // PAGE * PAGE
    make_folder(path.parent)
    exists = path.exists()
    if not exists or path.stat().st_size < file_bytes or path.stat().st_blocks * 512 < file_bytes:
        _fill(path, file_bytes, new=not exists)
    return DeviceFile(path), file_bytes


def _is_raw(path: Path) -> bool:
    return stat.S_ISBLK(path.stat().st_mode)


def _refuse_used(path: Path) -> None:
    """Raise ConfigError when the device is in use: by a mounted file system, a volume manager, an array."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise ConfigError(f"{path} is in use: unmount it, take it out of its array, or choose another device") from None


def _refuse_slots(file: DeviceFile, store_id: bytes, slot_bytes: int) -> None:
    """Raise ConfigError when a device has lost its superblocks, but not the data after them. Raises OSError."""
    for slot in range((file.size() - SLOTS_AT) // slot_bytes):
        with suppress(Corrupt):
            if owner_of_slot(file.read(SLOTS_AT + slot * slot_bytes, PAGE), store_id, slot) is not None:
                raise ConfigError(
                    f"{file.path} has no superblocks, but landing segments of this store: restore its first 8 KiB, or"
                    f" if they are not needed, clear the whole device: blkdiscard -z {file.path}"
                )


def _refuse_data(file: DeviceFile) -> None:
    for at in range(0, file.size(), _ZEROS):
        if any(file.read(at, _ZEROS)):
            raise ConfigError(f"{file.path} holds data: choose another name, or remove the file")


def _fill(path: Path, size: int, *, new: bool) -> None:
    """Write a file of zeros, durably. The file is never sparse: each write to it would have to allocate space first.
    Raises OSError."""
    is_link = not new and path.is_symlink()  # to a file on another disk, which an operator has made
    if not is_link:
        os.close(open_new(path, os.O_RDWR | (os.O_EXCL if new else 0)))
    fd, _ = open_direct(path, os.O_RDWR | os.O_CREAT | (0 if is_link else os.O_NOFOLLOW))
    try:
        try:
            with page_buffer(_ZEROS) as zeros:
                zeros[:] = bytes(_ZEROS)
                for at in range(0, size, _ZEROS):
                    write_at(fd, [zeros[: min(_ZEROS, size - at)]], at)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(path.parent)
    except OSError:
        if new:
            with suppress(OSError):
                path.unlink()
        raise
    kill_point("device_log.file_written")


def _make_device(
    file: DeviceFile,
    capacity: int,
    store_id: bytes,
    number: int,
    count: int,
    slot_bytes: int,
    window_bytes: int,
    life: int,
) -> OpenDevice:
    slots = (capacity - SLOTS_AT) // slot_bytes
    if slots < 2 or slots > SLOTS_MAX:
        raise ConfigError(
            f"{file.path} has room for {max(slots, 0)} slots of {slot_bytes} bytes; 2 to {SLOTS_MAX} are possible:"
            " choose another size of slots"
        )
    superblock = Superblock(store_id, number, count, slots, slot_bytes, capacity, window_bytes, 1, True, life)
    for slot in range(slots):  # headers of an earlier log may name this store, too
        file.write_page(superblock.slot_at(slot), bytes(PAGE))
    return OpenDevice(file, _put_twice(file, superblock))
