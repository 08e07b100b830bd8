"""Runs the offline part of an object's life for benchmarks: publish, pack, and delete the landing copies."""

from __future__ import annotations

from collections.abc import Sequence

from nos_consumer.assemble import consumer_service
from nos_consumer.service import ConsumerService
from nos_ec.bench.bare import Timer
from nos_ec.bench.figures import Run
from nos_ec.bench.meter import Instruments, Meter
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.landing_log import LandingLog
from nos_ec.engine.landing.log_bypass import LogBypass
from nos_ec.engine.texts import count_text
from nos_ec.engine.upkeep.housekeeping import Housekeeping
from nos_producer.assemble import producer_service

IDLE_TURNS_S_MAX = 60.0
IDLE_WAIT_MS = 20
"""How long the consumer waits at a time for its first message. The measurement starts with the turn that receives
it."""


def publish(system: System) -> int:
    """Publish all rows that are due, and return their number. Raises NosError."""
    with producer_service(system) as producer:
        return producer.drain()


def measured_pack(system: System, instruments: Instruments, drawn: Sequence[int]) -> Run:
    """Pack the published objects, whose sizes are `drawn`, commit the offsets, and return the measurements.

    The measurement begins with the turn that receives the first messages, so it excludes the consumer's start. It also
    excludes sealing the last blocks. Raises NosError.
    """
    meter = Meter(instruments, drawn)
    with consumer_service(system, idle_wait_ms=IDLE_WAIT_MS) as service:
        meter.prepare()
        _await_messages(service, meter, instruments.timer)
        _pack(service, len(drawn), instruments.timer)
        meter.stop()
    return meter.run


def reap(system: System, housekeeping: Housekeeping) -> None:
    """Delete all queued landing copies of packed objects, after the usual verification, and release their segments of
    the landing log. Raises Transient, also if a copy or segment is left."""
    _seal_log(system)
    while True:
        reaped = housekeeping.run_once().reaper
        is_empty = system.metadata.first_deletion_ms() is None
        if reaped.reverted or reaped.postponed or not (reaped.deleted or is_empty):
            raise Transient(f"bench: not all landing copies could be deleted ({reaped}); see the log")
        if is_empty:
            break
    totals = system.metadata.segment_totals()
    if left := sum(count for state, (count, _) in totals.items() if state is not SegmentState.OPEN):
        what = count_text(left, "segment of the landing log was", "segments of the landing log were")
        raise Transient(f"bench: {what} not released; see the log")


def _seal_log(system: System) -> None:
    """Seal the open segments of the system's own PUTs, which a busy gateway would seal when they are full."""
    lander = system.client.puts.batches.lander
    if isinstance(lander, LogBypass) and isinstance(lander.log, LandingLog):
        lander.log.seal()


def _await_messages(service: ConsumerService, meter: Meter, timer: Timer) -> None:
    """Run turns of the consumer until it receives messages. The meter starts with the turn that receives them."""
    deadline_s = timer() + IDLE_TURNS_S_MAX
    while not service.counters.messages:
        meter.start()
        service.turn(flush=False)
        if timer() > deadline_s:
            raise Transient(f"bench: the consumer received no message within {IDLE_TURNS_S_MAX:.0f} s")


def _pack(service: ConsumerService, objects: int, timer: Timer) -> None:
    """Pack all objects of a round and commit their offsets."""
    counters = service.counters
    moved_s = timer()
    while counters.offsets_committed < objects:
        if service.turn(flush=True):
            moved_s = timer()
        if timer() - moved_s > IDLE_TURNS_S_MAX:
            raise Transient(
                f"bench: the consumer stopped at {counters.offsets_committed} of {objects} messages; see its log"
            )
    if counters.packed != objects:
        raise Transient(f"bench: {counters.packed} of {objects} objects were packed; see the log")
