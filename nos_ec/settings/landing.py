"""The settings of the landing store and the landing log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from nos_ec.settings.section import HOUR, MINUTE, SECOND, Section
from nos_ec.settings.values import Count, Size

_MIB, _GIB = 1 << 20, 1 << 30
DEVICE = "landing_log/device0"
"""The device of the log if none is configured."""


class LandingSettings(Section):
    """Landing: where the bytes of a PUT are first made durable. docs/LANDING_LOG.md explains the landing log."""

    mode: Literal["store", "log", "drain"] = Field(
        default="log",
        description="store: each small object becomes a file or RADOS object of its own. log: PUTs share segments of"
        " the landing log, except for the first PUT of a process if it comes alone. drain: PUTs land as with store,"
        " while existing segments are packed and released. All processes read both kinds in every mode; the mode"
        " matters only to processes that PUT, pack or reap.",
    )
    segment_age_ms: Count = Field(
        default=MINUTE,
        ge=SECOND,
        le=HOUR,
        description="Age in milliseconds at which a segment is sealed even if it is not full. Only sealed segments are"
        " released.",
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
        description="Embedded store: number of devices to which each segment is written.",
    )
    device_bytes: Size = Field(
        default=256 * _MIB,
        ge=16 << 20,
        le=1 << 44,
        description="Embedded store: size of each file that `nos-ec init` creates for the log and fills with zeros. It"
        " cannot be changed later. When the log is full, PUTs land in the landing store, so make it large enough for"
        " the PUTs of a quarter of an hour. A raw device is used entirely.",
    )
    segment_bytes: Size = Field(
        default=8 * _MIB,
        ge=1 << 20,
        le=_GIB,
        description="Embedded store: size of a segment on the device. It cannot be changed after `nos-ec init`. A"
        " device has up to 65,536 segments. On Ceph a segment is an object of up to 16 MiB.",
    )

    def paths(self, root: Path) -> list[Path]:
        """Return the devices of an embedded store in `root`, in order."""
        names = [name.strip() for name in self.devices.split(",") if name.strip()]
        return [root / name for name in names or [DEVICE]]
