"""What recovery does with landing logs whose processes have died, without waiting for their leases to expire."""

from __future__ import annotations

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.engine.landing.log_lease import LEASE_PREFIX
from nos_ec.engine.landing.segment_seal import SegmentSeal
from nos_ec.ports.metadata import Metadata
from nos_ec.ports.segment_medium import SegmentMedium


def recover_logs(metadata: Metadata, medium: SegmentMedium) -> None:
    """Fence the lease of every log, and seal its segments. Raises Transient."""
    for lease in metadata.list_leases(LEASE_PREFIX):
        metadata.renew_lease(lease, 0, 1)
        assert metadata.fence_lease(lease, SystemClock().now_ms())
        for row in metadata.open_segments_of_log(int(lease.name.removeprefix(LEASE_PREFIX)), lease.epoch):
            end = SegmentSeal(metadata, medium).seal(row.segment)
            metadata.seal_segments([(row.segment, end, 0)], 0)
