"""The context of a command: its settings, the store that they describe, its logs and signal handlers.

What opens a store is imported when a command needs it: `nos-ec --version` takes a quarter of the time without it.
"""

from __future__ import annotations

import _thread
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from nos_ec.cli.terminal.signals import raise_unless_lost
from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import ObjectKey

if TYPE_CHECKING:
    from nos_ec.composition.wiring import System
    from nos_ec.engine.objects.store import Store
    from nos_ec.settings import Settings

CONFIG_VARIABLE = "NOS_EC_CONFIG"
SUPERVISED_VARIABLE = "NOS_EC_SUPERVISED"
"""Set for a process that another process of `nos-ec` has started, watches, and ends by closing its standard input."""
DEFAULT_CONFIGS = (Path("nos-ec.toml"), Path("/etc/nos-ec/nos-ec.toml"))

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and errors as JSON on stderr.")]


@dataclass(slots=True)
class Context:
    """The global options of a command: the file given with --config, and the cell given with --cell, if any; and its
    words, the arguments after the global options."""

    config: Path | None
    cell: str | None = None
    words: Sequence[str] = ()
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What a command on all cells has found in each, to be summed up at its end."""
    _loaded: Settings | None = None

    def config_file(self) -> Path | None:
        """Return the settings file to read: --config, else $NOS_EC_CONFIG, else the first of DEFAULT_CONFIGS that
        exists."""
        if self.config is not None:
            return self.config
        if named := os.environ.get(CONFIG_VARIABLE):
            return Path(named)
        for file in DEFAULT_CONFIGS:
            with suppress(OSError):  # a folder without search permission counts as having no file
                if file.exists():
                    return file
        return None

    def command(self, *words: str) -> str:
        """Return a `nos-ec` command that can be pasted into a shell in any folder: it names the settings file that is
        in use. Settings from the environment are left out, because they may be secrets."""
        file = self.config_file()
        named = ("--config", str(file.absolute())) if file is not None else ()
        return " ".join(map(_quoted, ("nos-ec", *named, *self._cell_words(), *words)))

    def arguments(self) -> list[str]:
        """Return the global options that make another process of `nos-ec` find the same settings."""
        file = self.config_file()
        return [*(() if file is None else ("--config", str(file))), *self._cell_words()]

    def _cell_words(self) -> tuple[str, ...]:
        return ("--cell", self.cell) if self.cell is not None else ()

    def settings(self) -> Settings:
        """Return the settings: those of the cell if one was given. Raises a ConfigError that lists all problems."""
        whole = self.whole()
        return whole if self.cell is None else whole.of_cell(self.cell)

    def whole(self) -> Settings:
        """Return the settings of the whole store, also if a cell was given. Raises ConfigError."""
        from nos_ec.settings import load_settings

        if self._loaded is None:
            self._loaded = load_settings(self.config_file(), os.environ)
        return self._loaded

    def keep(self, data: dict[str, Any]) -> None:
        """Keep what a command has found in its cell, if there are cells."""
        if self.cell is not None:
            self.kept[self.cell] = data

    def system(self) -> System:
        """Open the store. Raises ConfigError, Transient."""
        from nos_ec.composition.wiring import open_system

        return open_system(self.settings())

    def home(self, bucket: str, name: str | None = None, *, creates: bool = False) -> System:
        """Open the store, or of several cells the one that holds an object of this name in a bucket, or all objects for
        None. `creates`: an object will be put into it. Raises NotFound, InvalidInput for all objects of a wide bucket,
        and if an object would be put into another cell than its own, ConfigError, Transient."""
        from nos_ec.composition.cells import open_home

        if self.cell is None or not creates:
            return open_home(self.settings(), bucket, name, creates=creates)
        system = open_home(self.whole(), bucket, name, creates=True, preferred=self.cell)
        try:
            self.require_home(bucket if name is None else f"{bucket}/{name}", system.settings.cell)
        except InvalidInput:
            system.__exit__()
            raise
        return system

    @contextmanager
    def places(self, bucket: str) -> Iterator[Callable[[ObjectKey], Store]]:
        """Open what holds a bucket, into which objects will be put, and yield what returns the store of an object: of a
        wide bucket, there is one in each of its cells. Raises InvalidInput if a cell was given that does not hold all
        of it, ConfigError, Transient."""
        from nos_ec.composition.cells import open_places

        with open_places(self.whole(), bucket, self.cell) as (systems, cell_of):
            if self.cell is not None and len(systems) > 1:
                cells = " and ".join(map(str, systems))
                raise InvalidInput(
                    f"{bucket} is a wide bucket: each object belongs in one of the cells {cells}, by its name; leave"
                    " out --cell"
                )
            for cell in systems:
                self.require_home(bucket, cell)
            stores = {cell: system.client.store() for cell, system in systems.items()}
            yield lambda key: stores[cell_of(key.name)]

    def grouped(self, keys: Sequence[ObjectKey]) -> list[list[ObjectKey]]:
        """Return keys in groups by cell and bucket. Raises ConfigError, Transient."""
        from nos_ec.composition.cells import grouped_by_cell

        return grouped_by_cell(self.settings(), keys)

    def require_home(self, what: str, home: str | None) -> None:
        """Raise InvalidInput if a cell was given that is not the home of this bucket or object."""
        if self.cell not in (None, home):
            raise InvalidInput(f"{what} belongs in cell {home}, not in {self.cell}; leave out --cell")


def _quoted(word: str) -> str:
    """Quote a word for a shell. A word with control characters, which could garble a terminal, is escaped as in bash
    and zsh."""
    if word.isprintable():
        return shlex.quote(word)
    parts = (char if char.isprintable() and char not in "'\\" else _escaped(char) for char in word)
    return f"$'{''.join(parts)}'"


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode(errors="surrogateescape"))


def context(ctx: typer.Context) -> Context:
    """Return the Context that the root command created."""
    found = ctx.find_object(Context)
    assert found is not None
    return found


def parse_object(text: str) -> ObjectKey:
    """Parse 'bucket/name' into a key; the name may contain more slashes. Raises InvalidInput."""
    bucket, slash, name = text.partition("/")
    if not slash:
        raise InvalidInput(f"{text!r}: write an object as BUCKET/NAME")
    return ObjectKey(bucket, name)


def log_for_people() -> None:
    """Log warnings and errors to stderr, in readable form."""
    _configure(logging.WARNING, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))


def log_for_daemons(settings: Settings) -> None:
    """Log to stderr with the configured level and format. Libraries that use Python's logging (the HTTP server of the
    API, SQLAlchemy) log their warnings and errors in the same format. The process of a cell names it in each line."""
    level = logging.getLevelNamesMapping()[settings.logging.level.upper()]
    as_json = settings.logging.format == "json"
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if not as_json:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    _configure(level, renderer, settings.cell)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Libraries)]:
        root.removeHandler(handler)
    root.addHandler(_Libraries(renderer, max(level, logging.WARNING)))
    logging.captureWarnings(as_json)


def logs_json() -> bool:
    """Return whether logs are JSON, so that errors should be JSON as well."""
    return isinstance(structlog.get_config()["processors"][-1], structlog.processors.JSONRenderer)


class _Libraries(logging.Handler):
    """Formats log records of libraries with the renderer of our own logs."""

    def __init__(self, renderer: structlog.typing.Processor, level: int) -> None:
        super().__init__(level)
        self.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=[structlog.stdlib.add_logger_name, *_FACTS],
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _FORMAT_TRACE, renderer],
            )
        )

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


_FORMAT_TRACE = structlog.processors.format_exc_info
_FACTS = (structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True))


def _configure(level: int, renderer: structlog.typing.Processor, cell: str | None = None) -> None:
    def name_cell(_logger: object, _method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if cell is not None:
            line["cell"] = cell
        return line

    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, name_cell, *_FACTS, _FORMAT_TRACE, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Each line is a single write, so that lines of several processes do not mix.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def interrupt_on_sigterm() -> None:
    """Make SIGTERM end a one-shot command as Ctrl-C does: work in flight is finished, and leases are released.

    A second signal ends the process at once.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise_unless_lost(number, frame)

    signal.signal(signal.SIGTERM, handle)


def stop_on_signals(*, again_ends: bool = True) -> threading.Event:
    """Return an event that SIGTERM and SIGINT set. A second signal ends the process at once.

    This does not hold for a process that another one supervises, which would get two: one from systemd, which sends it
    to all processes of a unit, and one from the supervisor. `again_ends` is false for it.
    """
    stop = threading.Event()
    supervised = bool(os.environ.get(SUPERVISED_VARIABLE))

    def handle(number: int, _frame: object) -> None:
        if again_ends and not supervised:
            signal.signal(number, signal.SIG_DFL)
        # The signal may have interrupted this thread while it holds the lock of `stop`, so another thread sets it. A
        # threading.Thread would not do, because starting it takes locks as well.
        _thread.start_new_thread(stop.set, ())

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    if supervised:
        threading.Thread(target=_stop_with_supervisor, args=(stop,), name="supervisor", daemon=True).start()
    return stop


def _stop_with_supervisor(stop: threading.Event) -> None:
    """Set `stop` when the supervisor has ended, which closes our standard input. It never writes anything."""
    with suppress(OSError):
        os.read(0, 1)
    stop.set()
