"""The gateways of a chaos run: stores that clients share, and that are opened anew when a setting changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Event, Thread

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.cells import Cells, open_cells
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import Transient
from nos_ec.library.object_store import ObjectStore
from nos_ec.settings import Settings, load_settings
from tests.rig.at_rest import landing_log_of
from tests.rig.chaos.chaos_fleet import Fleet

OPEN_WAIT_S = 0.5
"""Between tries to open a store while a server is away."""
RESTART_EVERY_S = 1.5
"""Between restarts of daemons: while one starts, the others work."""
CYCLE = ((0.2, "log"), (0.7, "drain"), (1.0, "store"))
"""When landing.mode changes to what, as a share of a cycle. A run begins in mode store."""
CYCLE_S = 200.0
"""About how long a cycle takes in a long run. A shorter run has one cycle."""


class Gateway:
    """A process that PUTs and reads, as its clients see it: they wait while it is restarted."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._store: LibraryStore | None = open_library(load_settings(config, {}))
        self._changed = Condition()
        self._clients = 0
        self._restarting = False
        self._logged_objects = 0

    @contextmanager
    def use(self) -> Iterator[LibraryStore]:
        """The store for an operation. Raises Transient when it could not be opened again before the run ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._restarting)
            if self._store is None:
                raise Transient("the gateway was not opened again")
            store = self._store
            self._clients += 1
        try:
            yield store
        finally:
            with self._changed:
                self._clients -= 1
                self._changed.notify_all()

    def restart(self, stop: Event) -> None:
        """Let clients end their operations, close the store, and open it with the settings of now. Tries until servers
        answer, or `stop` is set."""
        with self._changed:
            self._restarting = True
            self._changed.wait_for(lambda: not self._clients)
        try:
            self.close()
            while self._store is None and not stop.is_set():
                try:
                    self._store = open_library(load_settings(self._config, {}))
                except Transient:
                    stop.wait(OPEN_WAIT_S)
        finally:
            with self._changed:
                self._restarting = False
                self._changed.notify_all()

    def close(self) -> None:
        """Close the store, as a gateway that ends. Idempotent."""
        store, self._store = self._store, None
        if store is not None:
            self._logged_objects += store.logged_objects
            store.close()

    @property
    def logged_objects(self) -> int:
        """How many objects were written to the landing log so far."""
        return self._logged_objects + (0 if self._store is None else self._store.logged_objects)


class LibraryStore(ObjectStore):
    """The store as programs use it, with the names that clients of a chaos run know."""

    @property
    def packed_size_max(self) -> int:
        """See chaos_clients.Objects."""
        return self.small_bytes_max

    @property
    def systems(self) -> Mapping[str, System]:
        """The cells that are open, by their names, or the store, which then has no name."""
        return self._system.opened() if isinstance(self._system, Cells) else {"": self._system}

    @property
    def logged_objects(self) -> int:
        """How many objects were written to the landing log, in all cells that are open."""
        logs = [landing_log_of(system) for system in self.systems.values()]
        return sum(log.counters.records for log in logs if log is not None)


def open_library(settings: Settings) -> LibraryStore:
    """Open a store or its cells. Raises Transient."""
    return LibraryStore(open_cells(settings, SystemClock()) if settings.cells else open_system(settings))


def plan_of_modes(seconds: float) -> list[tuple[float, str]]:
    """When landing.mode changes to what, in a run of this many seconds. The last change, to store, comes after it: when
    the log is empty."""
    cycles = max(1, round(seconds / CYCLE_S))
    length_s = seconds / cycles
    return [(length_s * (cycle + share), mode) for cycle in range(cycles) for share, mode in CYCLE][:-1]


class ModeChanges:
    """Changes landing.mode while clients work and strikes continue: gateways are restarted one after the other, and so
    are daemons at the same time. Meanwhile both modes run side by side."""

    def __init__(
        self,
        config: Path,
        fleet: Fleet,
        gateways: Sequence[Gateway],
        seconds: float,
        say: Callable[[str], None],
        stop: Event,
    ) -> None:
        """config: the file to change. stop: ends tries to open a gateway's store."""
        self._config = config
        self._fleet = fleet
        self._gateways = gateways
        self._plan = plan_of_modes(seconds)
        self._say = say
        self._stop = stop
        self._under_way: Iterator[None] = iter(())
        self.done: list[str] = []

    def turn(self, passed_s: float) -> bool:
        """Continue with the change under way, or begin the one that is due. Returns False after the last one."""
        if next(self._under_way, self) is None:
            return True
        if self._plan and passed_s >= self._plan[0][0]:
            self._under_way = self._change(self._plan.pop(0)[1], passed_s)
            return True
        return bool(self._plan)

    def _change(self, mode: str, passed_s: float) -> Iterator[None]:
        self._say(f"{passed_s:.1f} s: landing.mode becomes {mode}")
        set_mode(self._config, mode)
        restarting = Thread(target=self._restart_gateways, daemon=True)
        restarting.start()
        for name in self._fleet.all():
            self._fleet.restart(name)
            end_s = time.monotonic() + RESTART_EVERY_S
            while time.monotonic() < end_s:
                yield
        while restarting.is_alive():
            yield
        self.done.append(mode)

    def _restart_gateways(self) -> None:
        for gateway in self._gateways:
            gateway.restart(self._stop)


def set_mode(config: Path, mode: str) -> None:
    """Set landing.mode in a configuration of the chaos run, at once."""
    lines = [f'mode = "{mode}"' if line.startswith("mode = ") else line for line in config.read_text().splitlines()]
    changed = config.with_suffix(".new")
    changed.write_text("\n".join(lines) + "\n")
    changed.replace(config)
