"""Contract of `Scrubbing`: the state of a scrub is changed by compare-and-set only."""

from __future__ import annotations

from dataclasses import replace

from nos_ec.core.ids import BlockId
from nos_ec.ports.metadata import ScrubPass, ScrubState
from tests.rig.fakes.metadata_bench import MetadataBench


class ScrubbingContract:
    """scrub_state, store_scrub_state."""

    def test_the_state_of_a_scrub_is_stored_by_compare_and_set(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        begun = ScrubState(ScrubPass(began_ms=5))
        further = ScrubState(
            replace(ScrubPass(5), blocks=2**40, read_bytes=2**60, found=3, mended=2, unread=1), BlockId(bytes(16))
        )
        over = ScrubState(last=replace(ScrubPass(5), ended_ms=9))
        assert metadata.scrub_state() is None
        assert not metadata.store_scrub_state(further, begun), "nothing was stored"
        assert metadata.store_scrub_state(begun, None)
        assert metadata.scrub_state() == begun
        assert not metadata.store_scrub_state(further, None), "something was stored"
        assert not metadata.store_scrub_state(over, further)
        assert metadata.store_scrub_state(further, begun)
        assert metadata.scrub_state() == further
        assert not metadata.store_scrub_state(over, begun)
        assert metadata.store_scrub_state(over, further)
        assert metadata.scrub_state() == over
        assert metadata.stored_totals() is None, "they are another row"
