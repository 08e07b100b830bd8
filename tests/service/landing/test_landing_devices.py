"""The devices of an embedded store's landing log, from `nos-ec init` to a device that is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from nos_ec import ConfigError, Settings, initialise, open_store
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.connections import Connections
from nos_ec.core.errors import Transient
from nos_ec.settings import load_settings


def settings(root: Path, **landing: object) -> Settings:
    values = {"mode": "log", "device_bytes": 16 << 20, "segment_bytes": 1 << 20, **landing}
    env = {f"NOS_EC_LANDING__{name.upper()}": str(value) for name, value in values.items()}
    return load_settings(None, {"NOS_EC_STORE__ROOT": str(root), **env})


def test_a_log_without_its_only_device_is_made_anew_only_by_name(tmp_path: Path) -> None:
    with open_store(settings(tmp_path), create=True) as store:
        store.put("b/beside", b"beside the log")
        store.put("b/lost", b"gone with its device")
    device = tmp_path / "landing_log/device0"
    device.unlink()
    for mode in ("log", "drain", "store"):
        with pytest.raises(ConfigError, match="init --new-device 0"):
            initialise(settings(tmp_path, mode=mode))
        assert not device.exists()
    with pytest.raises(ConfigError, match="device 1 of the landing log is not missing"):
        initialise(settings(tmp_path), new_devices=[1])
    initialise(settings(tmp_path), new_devices=[0])
    with open_store(settings(tmp_path)) as store:
        store.put("b/new", b"in the new device")
        assert store.get("b/new") == b"in the new device"


def test_a_device_is_added_and_replaced(tmp_path: Path) -> None:
    with open_store(settings(tmp_path), create=True) as store:
        store.put("b/beside", b"beside the log")
        store.put("b/first", b"on one device")
    both = settings(tmp_path, devices="landing_log/device0, more/device1", copies=2)
    with pytest.raises(ConfigError, match="2 copies of each segment need as many devices"), open_store(both):
        pass
    initialise(both)
    with open_store(both) as store:
        assert store.get("b/first") == b"on one device"
        store.put("b/beside", b"beside the log")
        store.put("b/second", b"on two devices")
    (tmp_path / "landing_log/device0").rename(tmp_path / "away")
    with open_store(both) as store:
        assert store.get("b/second") == b"on two devices"
        store.put("b/third", b"beside the log")
    with pytest.raises(ConfigError, match="init --new-device 0"):
        initialise(both)
    initialise(both, new_devices=[0])
    with open_store(both) as store:
        assert store.get("b/second") == b"on two devices"
        assert store.get("b/third") == b"beside the log"


def test_init_leaves_alone_what_is_left_of_a_log_that_is_switched_off(tmp_path: Path) -> None:
    with open_store(settings(tmp_path), create=True):
        pass
    off, other = settings(tmp_path, mode="store", segment_bytes=2 << 20), settings(tmp_path, segment_bytes=2 << 20)
    initialise(off)
    with open_store(off) as store:
        store.put("b/beside", b"beside the log")
    with pytest.raises(ConfigError, match="configure the size that it has"):
        initialise(other)
    with (tmp_path / "landing_log/device0").open("r+b") as file:
        file.write(b"damaged " * 1024)
    initialise(off)
    with pytest.raises(ConfigError, match="holds data that does not belong to a landing log"):
        initialise(other)


def test_init_looks_at_a_log_that_is_switched_off_and_not_empty(tmp_path: Path) -> None:
    with open_store(settings(tmp_path), create=True) as store:
        store.put("b/beside", b"beside the log")
        store.put("b/landed", b"in the log")
    with pytest.raises(ConfigError, match="configure the size that it has"):
        initialise(settings(tmp_path, mode="store", segment_bytes=2 << 20))


def test_there_is_no_device_to_replace_in_a_store_without_a_log(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no landing log"):
        initialise(settings(tmp_path, mode="store"), new_devices=[0])
    assert not (tmp_path / "landing_log").exists()


def test_a_check_of_the_connections_tries_the_devices(tmp_path: Path) -> None:
    def said(given: Settings) -> tuple[str, str]:
        with Connections(given, SystemClock()) as connections:
            for check in connections.checks():
                try:
                    outcome = "ok", check.run()
                except (ConfigError, Transient) as error:
                    outcome = "failed", str(error)
                if check.name == "landing log":
                    return outcome
        return "not there", ""

    initialise(settings(tmp_path))
    one = settings(tmp_path, devices="landing_log/device0")
    assert said(one) == ("ok", f"devices: 1, copies: 1, {15 * ((1 << 20) - 4096)} bytes free")
    assert said(settings(tmp_path, mode="store")) == ("not there", "")
    device = tmp_path / "landing_log/device0"
    device.rename(tmp_path / "away")
    assert said(one)[0] == "failed"
    device.write_bytes(b"x" * (16 << 20))
    state, text = said(one)
    assert state == "failed"
    assert "holds data that does not belong to a landing log" in text
