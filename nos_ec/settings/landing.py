"""The section of the landing store."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from nos_ec.settings.section import HOUR, MINUTE, SECOND, Section
from nos_ec.settings.values import Count, Size

_MIB, _GIB = 1 << 20, 1 << 30
DEVICE = "landing_log/device0"
"""The device of a log for which none is configured."""


class LandingSettings(Section):
    """Where the bytes of a PUT are first made durable. docs/LANDING_LOG.md explains the landing log."""

    mode: Literal["store", "log", "drain"] = Field(
        default="log",
        description="store: each small object is a file or RADOS object of its own. log: PUTs share segments of the"
        " landing log, but for the first of a process if it comes alone. drain: as store, while the segments that exist"
        " are packed and released. All processes read both, whatever the mode; only processes that PUT, pack or reap"
        " use it.",
    )
    lanes: Count = Field(
        default=0,
        ge=0,
        le=64,
        description="Segments that one process appends to at the same time. More lanes make batches smaller. 0: 2 on"
        " Ceph, 1 on devices, which take 2 appends to a segment at a time.",
    )
    segment_age_ms: Count = Field(
        default=MINUTE,
        ge=SECOND,
        le=HOUR,
        description="Age at which a segment is sealed although it is not full, in milliseconds. Only sealed segments"
        " are released.",
    )
    bypass_bytes: Size = Field(
        default=1 << 20,
        ge=64 << 10,
        le=64 << 20,
        description="Objects of this size or more do not go into the log, because a write of their own costs no more."
        " A quarter of a segment, if that is less.",
    )
    devices: str = Field(
        default="",
        title="paths, separated by commas",
        max_length=4000,
        description="Embedded store: the raw block devices or files that hold the log. Empty: one file,"
        " landing_log/device0, in store.root. Relative paths start at store.root.",
    )
    copies: Count = Field(
        default=1,
        ge=1,
        le=3,
        description="Embedded store: on how many of the devices each segment is written.",
    )
    device_bytes: Size = Field(
        default=256 * _MIB,
        ge=16 << 20,
        le=1 << 44,
        description="Embedded store: size of each file that `nos-ec init` creates for the log, and fills with zeros."
        " Fixed from then on. When the log is full, PUTs land in the landing store: give it room for what lands in a"
        " quarter of an hour. A raw device is used as a whole.",
    )
    segment_bytes: Size = Field(
        default=8 * _MIB,
        ge=1 << 20,
        le=_GIB,
        description="Embedded store: size of a segment on the device, which `nos-ec init` fixes. A device has up to"
        " 65,536 of them. On Ceph a segment is an object of up to 16 MiB.",
    )

    def paths(self, root: Path) -> list[Path]:
        """The devices of an embedded store in `root`, in order."""
        names = [name.strip() for name in self.devices.split(",") if name.strip()]
        return [root / name for name in names or [DEVICE]]
