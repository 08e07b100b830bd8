"""Learns how long objects live, if the settings ask for more than one stream; a single stream does not need that."""

from __future__ import annotations

import random
from contextlib import ExitStack

from nos_ec.engine.expiry.survival import Deaths, Survey
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Survival
from nos_ec.settings import Settings


def watch_deaths(settings: Settings, metadata: Survival, clock: Clock, stack: ExitStack) -> None:
    """Count the objects that this process deletes or overwrites, until `stack` is closed."""
    if settings.gc.streams > 1:
        deaths = Deaths(metadata, clock)
        metadata.watch_deaths(deaths.died)
        stack.callback(deaths.flush)


def new_survey(settings: Settings, metadata: Survival, clock: Clock, rng: random.Random) -> Survey | None:
    """Return the survey of lifetimes that housekeeping makes; None with a single stream."""
    return Survey(metadata, clock, rng) if settings.gc.streams > 1 else None
