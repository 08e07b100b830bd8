"""Opens the cells of a store for the console.

Each cell is opened by a thread of its own, which tries again until it succeeds, and has panels with threads of their
own. So neither a cell that is away nor one that hangs keeps another one from being shown, and no cell needs that of the
directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import structlog
from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp

from nos_ec.composition.wiring import System, open_system
from nos_ec.console.cells.moves import CellMoves
from nos_ec.console.last_night import LastNight
from nos_ec.console.overview import Overview
from nos_ec.console.panels import Panels, Source
from nos_ec.core.errors import Transient
from nos_ec.ports.clock import Clock
from nos_ec.settings import Settings

RETRY_MS, RETRY_MS_MAX = 1_000, 30_000
CLOSE_S_MAX = 5.0
"""How long closing waits for cells that are being opened."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a store or a cell, and the sources that the page of all cells reads."""

    routes: Sequence[BaseRoute]
    overview: Overview
    last_night: LastNight
    moves: Source[CellMoves]


@dataclass(frozen=True, slots=True)
class OpenCell:
    """A cell that is open. Its panels read it, and `app` serves its pages."""

    system: System
    panels: Panels
    pages: Pages
    app: ASGIApp


class ConsoleCells:
    """The cells of a store. A context manager, which opens them in the background. Safe to call from several
    threads."""

    def __init__(self, settings: Settings, clock: Clock, pages: Callable[[str, System, Panels], Pages]) -> None:
        """`pages` makes the pages of a cell, given its name."""
        self.settings = settings
        self._clock = clock
        self._pages = pages
        self._open: dict[str, OpenCell] = {}
        self._failures: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_opening, args=(name,), name=f"open-{name}", daemon=True)
            for name in settings.cells
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closing.set()
            found, self._open = self._open, {}
        for cell in found.values():
            cell.panels.close()
        for cell in found.values():
            cell.system.__exit__()
        for thread in self._threads:
            thread.join(CLOSE_S_MAX / len(self._threads))

    def opened(self) -> dict[str, OpenCell]:
        """Return the cells that are open, in the order of the settings."""
        with self._lock:
            return {name: self._open[name] for name in self.settings.cells if name in self._open}

    def why_away(self, name: str) -> str:
        """Return why a cell is not open, in words."""
        reason = self._failures.get(name)
        return "It has not answered yet." if reason is None else reason

    def turn(self) -> None:
        """Begin what is due in the panels of each cell. The loop of the process calls this."""
        for cell in self.opened().values():
            cell.panels.turn()

    def _keep_opening(self, name: str) -> None:
        wait_ms = RETRY_MS
        while not self._closing.is_set():
            try:
                self._try(name)
            except Exception as error:  # whatever is wrong with a cell, the others are shown
                if self._failures.get(name) != str(error):
                    log = _log.warning if isinstance(error, Transient) else _log.error
                    log("a cell cannot be opened; trying again", cell=name, error=str(error))
                self._failures[name] = str(error)
                self._clock.wait(self._closing, wait_ms)
                wait_ms = min(2 * wait_ms, RETRY_MS_MAX)
            else:
                return

    def _try(self, name: str) -> None:
        """Open a cell, unless the console is closing."""
        system = open_system(self.settings.of_cell(name))
        try:
            system.check_for_daemon(writes=False, publishes=False)
            panels = Panels(system.clock)
            pages = self._pages(name, system, panels)
            cell = OpenCell(system, panels, pages, Router(pages.routes))
        except BaseException:
            system.__exit__()
            raise
        with self._lock:
            if is_wanted := not self._closing.is_set():
                self._open[name] = cell
        if not is_wanted:
            system.__exit__()
        elif self._failures.pop(name, None) is not None:
            _log.info("a cell has been opened", cell=name)
