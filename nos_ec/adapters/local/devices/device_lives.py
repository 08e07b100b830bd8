"""How often each device of a landing log was replaced, so that a device that was given up is not used again.

The segments of such a device were given up, too: since then, others may have been recorded, packed and released, and
the device's content is as old as its loss. Each superblock has the life of its device: 0, or one more than the device
that it replaced. The file `replaced` in the log's folder of the store has the valid life of each device that was ever
replaced. It is written after the device, so a device with a later life is valid as well: `nos-ec init` was killed
between the two writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import google_crc32c

from nos_ec.adapters.local.devices.device_format import Superblock
from nos_ec.adapters.local.files.durable import replace_file
from nos_ec.core.errors import ConfigError
from nos_ec.core.killpoints import kill_point

FILE = "replaced"


def read_lives(folder: Path) -> dict[int, int]:
    """Return the lives of the devices that were replaced, by number. Raises ConfigError for a damaged file, OSError."""
    path = folder / FILE
    try:
        line, _, checksum = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return {}
    try:
        if checksum and checksum != _checksum_of(line):  # older releases wrote no checksum
            raise ValueError("its checksum does not match")
        return {int(number): int(life) for number, life in json.loads(line).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}): restore it from a backup") from error


def record_lives(folder: Path, lives: Mapping[int, int]) -> None:
    """Record devices that were initialised, durably. The log's folder must be locked. Raises ConfigError, OSError."""
    known = read_lives(folder)
    latest = known | {number: life for number, life in lives.items() if life > known.get(number, 0)}
    if latest != known:
        line = json.dumps(dict(sorted(latest.items()))).encode()
        replace_file(folder / FILE, line + b"\n" + _checksum_of(line))
        kill_point("device_log.replacement_recorded")


def _checksum_of(line: bytes) -> bytes:
    return f"{google_crc32c.value(line):08x}\n".encode()


def refuse_replaced(path: Path, superblock: Superblock, lives: Mapping[int, int]) -> None:
    """Raise ConfigError for a device that was replaced by another one."""
    if superblock.life < lives.get(superblock.device, 0):
        raise ConfigError(
            f"{path} was device {superblock.device} of the landing log, but was replaced by another one, and its"
            f" content is out of date: connect the other one. To use this one again, remove the file, or clear the"
            f" whole device: blkdiscard -z {path}"
        )
