"""Contract of `Notes`: a note is changed by compare-and-set only."""

from __future__ import annotations

from nos_ec.ports.metadata import NOTE_CHARS_MAX
from tests.rig.fakes.metadata_bench import MetadataBench


class NotesContract:
    """note, store_note."""

    def test_a_note_is_stored_by_compare_and_set(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert metadata.note("gc control") is None
        assert not metadata.store_note("gc control", "b", "a"), "nothing was stored"
        assert metadata.store_note("gc control", "a", None)
        assert not metadata.store_note("gc control", "b", None), "something was stored"
        assert not metadata.store_note("gc control", "b", "A")
        assert metadata.note("gc control") == "a"
        assert metadata.store_note("gc control", "b" * NOTE_CHARS_MAX, "a")
        assert metadata.note("gc control") == "b" * NOTE_CHARS_MAX
        assert metadata.store_note("gc control", "b" * NOTE_CHARS_MAX, "b" * NOTE_CHARS_MAX), "it is what is stored"
        assert metadata.note("other") is None
        assert metadata.stored_totals() is None, "they are other rows"
        assert metadata.scrub_state() is None
