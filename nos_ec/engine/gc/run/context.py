"""The context that all parts of one GC run share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nos_ec.core.gc.share import Share
from nos_ec.core.ids import BlockId
from nos_ec.core.packing.plan import MergeList
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.gc.run.progress import Progress
from nos_ec.engine.gc.run.stop import RunStop
from nos_ec.engine.packable import Packable
from nos_ec.engine.retry_queue import RetryQueue
from nos_ec.ports.audit_trail import AuditTrail
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Metadata


@dataclass(frozen=True, slots=True)
class RunContext:
    """The stores, the clock, the options and the progress of one run. `stop` ends the run early."""

    metadata: Metadata
    blocks: BlockStore
    trail: AuditTrail
    clock: Clock
    timer: Callable[[], float]
    """Returns monotonic seconds with an arbitrary origin."""
    options: CollectorOptions
    share: Share
    """The blocks that the run collects. `share.worker` is the number of its worker."""
    new_merge_list: Callable[[], MergeList[Packable]]
    """Makes an empty merge list that sorts objects into streams; the one in `options`, for plans, does not."""
    retry_queue: RetryQueue[BlockId]
    """Blocks that could not be read, in this run or in earlier ones."""
    progress: Progress
    stop: RunStop
