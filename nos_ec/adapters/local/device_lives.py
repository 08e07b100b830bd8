"""How often each device of a landing log was replaced, so that a device that was given up is not used again.

Its segments were given up with it: others may have been recorded, packed and released since, and what it would show is
as old as its loss. Each superblock has the life of its device: 0, or one more than the device that it replaced. The
file `replaced` in the log's folder of the store has the life that counts, for the devices that were ever replaced. It
is written after the device, so a device with a later life counts as well: `nos-ec init` was killed between the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from nos_ec.adapters.local.device_format import Superblock
from nos_ec.adapters.local.durable import replace_file
from nos_ec.core.errors import ConfigError
from nos_ec.core.killpoints import kill_point

FILE = "replaced"


def read_lives(folder: Path) -> dict[int, int]:
    """The lives of the devices that were replaced, by number. Raises ConfigError for a damaged file, OSError."""
    path = folder / FILE
    try:
        return {int(number): int(life) for number, life in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}): restore it from a backup") from error


def record_lives(folder: Path, lives: Mapping[int, int]) -> None:
    """Record devices that were made, durably. The log's folder is locked. Raises ConfigError, OSError."""
    known = read_lives(folder)
    latest = known | {number: life for number, life in lives.items() if life > known.get(number, 0)}
    if latest != known:
        replace_file(folder / FILE, json.dumps(dict(sorted(latest.items()))).encode() + b"\n")
        kill_point("device_log.replacement_recorded")


def refuse_replaced(path: Path, superblock: Superblock, lives: Mapping[int, int]) -> None:
    """Raise ConfigError for a device in whose place there is another one."""
    if superblock.life < lives.get(superblock.device, 0):
        raise ConfigError(
            f"{path} was device {superblock.device} of the landing log, but was replaced by another one, and what it"
            " holds is out of date: connect the other one, or clear this one to use it again: dd if=/dev/zero"
            f" of={path} bs=1M count=1 conv=notrunc"
        )
