"""Lists all landing segments, in pages."""

from __future__ import annotations

from collections.abc import Iterator

from nos_ec.core.ids import SegmentId
from nos_ec.ports.metadata import LandingSegments, SegmentRow


def segment_pages(metadata: LandingSegments, rows: int = 500) -> Iterator[list[SegmentRow]]:
    """Yield the rows of all landing segments in order of id, in pages of at most `rows`. Raise Transient."""
    after: SegmentId | None = None
    while page := metadata.list_segments(after, rows):
        yield page
        after = page[-1].segment
