"""Stores of several cells, and a gateway that serves them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.commands.cells import enter_cell
from nos_ec.composition.cells import Cells, enter_buckets, open_cells
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.gateway.auth.accounts import Accounts
from nos_ec.gateway.server.cell_services import CellServices
from nos_ec.gateway.server.http_server import GatewayServer, open_gateway_listener
from nos_ec.ports.metadata import ROOT_ACCOUNT, DirectoryRow
from nos_ec.settings import Cell, S3Settings, Settings, load_settings
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, Gateway, health_of

SMALL = """
[geometry]
chunk_size = 16384
stripes_per_block = 8
[log]
partitions = 2
[landing]
device_bytes = "24MiB"
segment_bytes = "4MiB"
"""

SPREADING = 3
"""With this seed, a dozen buckets are in all of three cells."""


def cells_config(folder: Path, **weights: int) -> Path:
    """A file with these cells, of which the first has the directory."""
    lines = ["[store]", f'directory = "{next(iter(weights))}"', SMALL]
    for name, weight in weights.items():
        lines += [f"[cells.{name}]", f"weight = {weight}", f'store.root = "{name}"']
    file = folder / "cells.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def new_cells(folder: Path, **weights: int) -> Settings:
    """The settings of a new store with these cells, all of them initialised."""
    settings = load_settings(cells_config(folder, **weights), {})
    for name in settings.cells:
        initialise(settings.of_cell(name))
        enter_cell(settings, name)
    return settings


class WideCells(Cells):
    """Cells in which each new bucket is a wide one, with a slice in each cell."""

    @property
    def slices(self) -> tuple[str, ...]:
        """The slices, first those of the cells that take buckets."""
        cells = self.settings.cells
        return tuple(sorted(cells, key=lambda name: not cells[name].weight))

    def place(self, bucket: str) -> DirectoryRow | None:
        """See Cells. A bucket that there never was is treated like a wide one that was deleted."""
        return super().place(bucket) or DirectoryRow(bucket, self.slices[0], ROOT_ACCOUNT, 0, True, self.slices)

    def claim(self, bucket: str, owner: str, preferred: str | None = None, slices: Sequence[str] = ()) -> DirectoryRow:
        """See Cells."""
        return super().claim(bucket, owner, preferred, self.slices)


@contextmanager
def serving_beside(system: System, folder: Path, kind: type[Cells] = Cells) -> Iterator[Gateway]:
    """A gateway of two cells: all buckets are in this store, and the directory and the access keys in another one in
    this folder. With WideCells, all buckets are in both."""
    file = folder / "directory.toml"
    file.write_text(f'[store]\nroot = "directory"\n{SMALL}')
    settings = load_settings(file, {})
    initialise(settings)
    settings = settings.model_copy(update={"store": settings.store.model_copy(update={"directory": "directory"})})
    with open_system(settings) as directory:
        opened = {"directory": directory, "store": system}
        of_cells = {name: Cell(one.settings.model_copy(), int(one is system)) for name, one in opened.items()}
        cells = kind(settings.with_cells(of_cells), system.clock)
        for name, one in opened.items():
            cells._systems[name] = one
            cells._follow(name, one)
            one.settings = cells.settings.of_cell(name)
            enter_buckets(directory, one, [])
        with _gateway(cells, system) as gateway:
            wide = cells.wide(cells.slices) if isinstance(cells, WideCells) else system.metadata
            gateway.accounts = Accounts(directory.metadata, directory.clock, os.urandom, wide)
            yield gateway


@contextmanager
def _gateway(cells: Cells, system: System, s3: S3Settings = SETTINGS) -> Iterator[Gateway]:
    ids = itertools.count(1)
    service, listener = CellServices(cells, MASTERS, s3, perf_counter), open_gateway_listener(s3)
    with GatewayServer(service, s3, lambda: f"{next(ids):016X}", listener, health_of(system)) as server:
        yield Gateway(system, server.url)


@contextmanager
def serving_cells(settings: Settings, s3: S3Settings = SETTINGS) -> Iterator[tuple[Cells, Gateway]]:
    """The open cells and a gateway of them, whose accounts are those of the directory."""
    with open_cells(settings, SystemClock()) as cells, _gateway(cells, cells.directory, s3) as gateway:
        cells._random.seed(SPREADING)
        yield cells, gateway
