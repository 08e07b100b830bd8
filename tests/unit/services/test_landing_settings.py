"""Settings of the landing log: what contradicts what."""

from __future__ import annotations

from pathlib import Path

import pytest

from nos_ec.adapters.local.devices import device_format
from nos_ec.composition.landing import bypass_bytes
from nos_ec.core.errors import ConfigError
from nos_ec.ports.segment_medium import MediumLimits
from nos_ec.settings import check_settings, load_settings
from nos_ec.settings.checks import DEVICES_MAX


def env(**landing: str) -> dict[str, str]:
    return {f"NOS_EC_LANDING__{name.upper()}": value for name, value in landing.items()}


CEPH = {"NOS_EC_STORE__BACKEND": "ceph", "NOS_EC_CEPH__CONF_FILE": "/etc/ceph/ceph.conf"}


@pytest.mark.parametrize(
    ("given", "setting", "problem"),
    [
        (env(devices="a,,b"), "devices", "no path before or after one of the commas"),
        (env(devices="a,"), "devices", "no path before or after one of the commas"),
        (env(devices="a, ./a"), "devices", "is named twice"),
        (env(devices="/srv/a, /srv/x/../a"), "devices", "/srv/a is named twice"),
        (env(devices="a\0b"), "devices", "is not a valid path"),
        (env(devices=",".join(f"d{n}" for n in range(65))), "devices", "65 devices are named; use at most 64"),
        (env(copies="2"), "copies", "2 copies need as many devices, and landing.devices names 1"),
        (env(copies="3", devices="a, b"), "copies", "3 copies need as many devices, and landing.devices names 2"),
        (env(segment_bytes="2000000"), "segment_bytes", "2000000 is not a multiple of 4096"),
        (env(device_bytes="2000000000"), "device_bytes", "2000000000 is not a multiple of 4096"),
        (
            env(device_bytes="32MiB"),
            "device_bytes",
            "too small for 4 segments of landing.segment_bytes; use at least 34603008",
        ),
        (env(devices="/dev/sdb, a", device_bytes="16MiB"), "device_bytes", "too small for 4 segments"),
        (CEPH | env(devices="a"), "devices", 'only store.backend = "local" has devices'),
        (CEPH | env(copies="2"), "copies", "on Ceph the landing pool determines the number of copies"),
    ],
)
def test_what_contradicts_is_refused(given: dict[str, str], setting: str, problem: str) -> None:
    (found,) = check_settings(None, given)
    assert problem in found.text
    with pytest.raises(ConfigError) as error:
        load_settings(None, given)
    assert error.value.settings == (f"landing.{setting}",)


@pytest.mark.parametrize(
    "given",
    [
        env(mode="log"),
        env(devices="a, b", copies="2"),
        env(devices="/dev/sdb", segment_bytes="1GiB"),
        env(device_bytes="16MiB", segment_bytes="1MiB"),
        CEPH | env(mode="log"),
    ],
)
def test_what_fits_is_accepted(given: dict[str, str]) -> None:
    assert check_settings(None, given) == []


def test_devices_start_at_the_root(tmp_path: Path) -> None:
    root = {"NOS_EC_STORE__ROOT": str(tmp_path)}
    landing = load_settings(None, root | env(devices="a, /dev/sdb ,b/c")).landing
    assert landing.paths(tmp_path) == [tmp_path / "a", Path("/dev/sdb"), tmp_path / "b/c"]
    assert load_settings(None, root).landing.paths(tmp_path) == [tmp_path / "landing_log/device0"]


def test_the_most_devices_are_those_of_the_format() -> None:
    assert DEVICES_MAX == device_format.DEVICES_MAX


def test_an_object_that_hardly_fits_a_segment_passes_by() -> None:
    def limits(segment_bytes: int) -> MediumLimits:
        return MediumLimits(segment_bytes, 4096, 4096, 1 << 18, 64, 1)

    assert bypass_bytes(limits(1 << 26)) == 1 << 20
    assert bypass_bytes(limits(1 << 20)) == 1 << 18
