"""What every medium of the landing log must do. Subclass the contract and define `open_medium`."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import google_crc32c
import pytest

from nos_ec.core.errors import Conflict, NotFound
from nos_ec.core.formats.copy_label import CopyLabel
from nos_ec.core.formats.landing_format import NONCE_SIZE, lay_out, new_record
from nos_ec.core.ids import RECORD_ALIGN, ObjectKey, SegmentId, new_segment_id
from nos_ec.engine.landing.landing_labels import labels_in_segment
from nos_ec.ports.segment_medium import Seal, SegmentMedium, SegmentWriter, UnreadableSlot
from tests.rig.waiting import WAIT_S_MAX

KEY = ObjectKey("bucket", "name")
_opened_ms = itertools.count(Random().randrange(1 << 40))


def new_segment() -> SegmentId:
    """Return the id of a segment that was never created."""
    return new_segment_id(next(_opened_ms), log=7)


def _one_record(segment: SegmentId, offset: int, size: int, align: int) -> bytes:
    """A batch of one record, of `size` bytes if it fits."""
    random = Random(f"{segment.hex()} {offset}")
    names = new_record(KEY, b"-", 0)
    data = random.randbytes(max(1, size - names.size + RECORD_ALIGN))
    record = new_record(KEY, data, google_crc32c.value(data))
    laid = lay_out(segment, offset, offset, 1, [record], random.randbytes(NONCE_SIZE), align)
    return b"".join(laid.buffers)


class SegmentMediumContract:
    """The promises of nos_ec.ports.segment_medium, as tests."""

    @pytest.fixture
    def open_medium(self) -> Callable[[], SegmentMedium]:
        """Return a function that opens the same medium at each call, as another process would. It must have room for 8
        segments. The tests close it."""
        raise NotImplementedError

    @pytest.fixture
    def medium(self, open_medium: Callable[[], SegmentMedium]) -> Iterator[SegmentMedium]:
        medium = open_medium()
        yield medium
        medium.close()

    @pytest.fixture
    def other(self, open_medium: Callable[[], SegmentMedium]) -> Iterator[SegmentMedium]:
        """A second handle on the medium, as another process would have."""
        medium = open_medium()
        yield medium
        medium.close()

    def batch(self, medium: SegmentMedium, segment: SegmentId, offset: int, size_min: int) -> bytes:
        """A batch of one record for this place, of at least this size, padded as the medium wants it."""
        align = medium.limits.align
        size = -(-size_min // align) * align
        while len(laid := _one_record(segment, offset, size, align)) < size_min:
            size += align
        return laid

    def append(
        self, medium: SegmentMedium, writer: SegmentWriter, segment: SegmentId, offset: int, size_min: int = 1
    ) -> bytes:
        """Append one batch at `offset`, and return it."""
        batch = self.batch(medium, segment, offset, size_min)
        writer.append(offset, [batch])
        return batch

    # --- writing and reading --------------------------------------------------------------------------
    def test_the_limits_fit_together(self, medium: SegmentMedium) -> None:
        limits = medium.limits
        assert limits.align % RECORD_ALIGN == 0
        assert limits.start % limits.align == limits.batch_bytes_max % limits.align == 0
        assert limits.segment_bytes % limits.align == 0
        assert limits.start + limits.batch_bytes_max <= limits.segment_bytes <= RECORD_ALIGN << 32
        assert min(limits.batch_records_max, limits.writes_max, limits.copies) >= 1
        assert limits.writes_max == 1 or not limits.appends_create_and_seal

    def test_what_was_appended_reads_back(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        offset, written = limits.start, b""
        for size in (1, limits.align, 3 * limits.align, limits.batch_bytes_max // 2):
            written += self.append(medium, writer, segment, offset + len(written), size)
            for handle in (medium, other):
                assert handle.read(segment, [(offset, len(written))]) == [written]
                assert list(handle.segments()) == [segment]
        writer.close()
        writer.close()
        for copy in range(limits.copies):
            assert other.read(segment, [(offset, len(written))], copy) == [written]

    def test_records_tell_what_they_are(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        """Rows can be rebuilt from them, whether the segment is sealed or not."""
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        offset, expected = limits.start, {}
        for number, attributes in enumerate((b"", b"some", bytes(1000))):
            data = bytes([number]) * (number * 300 + 1)
            crc32c = google_crc32c.value(data)
            records = [new_record(KEY, data, crc32c, attributes), new_record(KEY, data, crc32c, b"", put_ms=5)]
            laid = lay_out(segment, offset, number, 77, records, bytes(range(2 * NONCE_SIZE)), limits.align)
            writer.append(offset, [b"".join(laid.buffers)])
            offset += laid.size
            first, second = laid.ids
            expected[first] = CopyLabel(KEY.bucket, KEY.name, 77, len(data), crc32c, attributes)
            expected[second] = CopyLabel(KEY.bucket, KEY.name, 5, len(data), crc32c, b"")
            assert labels_in_segment(other, segment) == expected
        writer.close()
        medium.seal(segment, None, 0)
        assert labels_in_segment(other, segment) == expected

    def test_a_full_batch_and_a_full_segment(self, medium: SegmentMedium) -> None:
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        offset, batches = limits.start, []
        while offset < limits.segment_bytes:
            size = min(limits.batch_bytes_max, limits.segment_bytes - offset)
            batches.append((offset, self.append(medium, writer, segment, offset, size)))
            offset += size
        writer.close()
        assert medium.seal(segment, None, 0) == limits.segment_bytes
        for at, batch in batches:
            assert medium.read(segment, [(at, len(batch))]) == [batch]

    def test_a_batch_larger_than_it_should_be_is_written(self, medium: SegmentMedium) -> None:
        """One record can be larger than `batch_bytes_max`."""
        segment, limits = new_segment(), medium.limits
        size = min(limits.batch_bytes_max + 5 * limits.align, limits.segment_bytes - limits.start)
        writer = medium.create(segment, epoch=1, first_lsn=0)
        batch = self.append(medium, writer, segment, limits.start, size)
        writer.close()
        assert medium.read(segment, [(limits.start, len(batch))]) == [batch]

    def test_a_batch_of_any_buffers(self, medium: SegmentMedium) -> None:
        segment, start = new_segment(), medium.limits.start
        batch = self.batch(medium, segment, start, 3 * medium.limits.align)
        writer = medium.create(segment, epoch=1, first_lsn=0)
        writer.append(start, [batch[:1], b"", bytearray(batch[1:100]), memoryview(b"_" + batch[100:])[1:]])
        writer.close()
        assert medium.read(segment, [(start, len(batch))]) == [batch]

    def test_a_slot_that_can_be_read_is_not_changed(self, medium: SegmentMedium) -> None:
        segment = new_segment()
        medium.create(segment, epoch=1, first_lsn=0).append(medium.limits.start, [bytes(medium.limits.align)])
        for epoch in (None, 1):
            assert not medium.settle_slot(UnreadableSlot(0, 0, segment), epoch)
        assert segment in medium.segments()

    def test_ranges(self, medium: SegmentMedium) -> None:
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        data = self.append(medium, writer, segment, limits.start, 4 * limits.align)
        writer.close()
        ranges = [(0, len(data)), (0, 0), (1, 1), (limits.align - 1, 2), (len(data) - 1, 1), (8, 4321), (8, 4321)]
        wanted = [data[at : at + length] for at, length in ranges]
        assert medium.read(segment, [(limits.start + at, length) for at, length in ranges]) == wanted
        assert medium.read(segment, []) == []

    def test_ranges_are_cut_off_at_the_end_of_the_segment(self, medium: SegmentMedium) -> None:
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        data = self.append(medium, writer, segment, limits.start, limits.align)
        writer.close()
        end = limits.segment_bytes
        for asked, most in (((end - 10, 100), 10), ((end, 100), 0), ((end + 4096, 100), 0)):
            (found,) = medium.read(segment, [asked])
            assert len(found) <= most
        (found,) = medium.read(segment, [(limits.start, end)])
        assert len(found) <= end - limits.start
        assert found[: len(data)] == data

    def test_a_segment_can_be_created_only_once(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        segment, start = new_segment(), medium.limits.start
        writer = medium.create(segment, epoch=1, first_lsn=0)
        batch = self.append(medium, writer, segment, start)
        writer.close()
        for handle in (medium, other):
            with pytest.raises(Conflict):
                self.append(handle, handle.create(segment, epoch=2, first_lsn=0), segment, start)
        assert medium.read(segment, [(start, len(batch))]) == [batch]

    def test_a_segment_is_there_once_it_has_a_batch(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        segment, start = new_segment(), medium.limits.start
        writer = medium.create(segment, epoch=1, first_lsn=0)
        assert list(other.segments()) == ([] if medium.limits.appends_create_and_seal else [segment])
        self.append(medium, writer, segment, start)
        writer.close()
        assert list(other.segments()) == [segment]

    def test_one_of_two_creators_wins(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        for _ in range(6):
            segment, start = new_segment(), threading.Barrier(2)

            def create(handle: SegmentMedium, segment: SegmentId, start: threading.Barrier) -> int:
                start.wait(WAIT_S_MAX)
                try:
                    writer = handle.create(segment, epoch=1, first_lsn=0)
                    self.append(handle, writer, segment, handle.limits.start)
                    writer.close()
                except Conflict:
                    return 0
                return 1

            with ThreadPoolExecutor(2) as pool:
                created = [pool.submit(create, handle, segment, start) for handle in (medium, other)]
                assert sum(each.result() for each in created) == 1
            assert list(medium.segments()) == [segment]
            assert medium.release([segment]) == {}

    def test_what_is_not_there(self, medium: SegmentMedium) -> None:
        segment = new_segment()
        with pytest.raises(NotFound):
            medium.read(segment, [(medium.limits.start, 10)])
        self.seal_what_is_not_there(medium, segment)
        assert medium.release([segment]) == {}
        assert list(medium.segments()) == []

    def seal_what_is_not_there(self, medium: SegmentMedium, segment: SegmentId) -> None:
        """Perhaps its writer is about to begin it: then something must be there that keeps it from that."""
        if medium.limits.appends_create_and_seal:
            assert medium.seal(segment, None, 0) == 0
            assert medium.release([segment]) == {}
        else:
            with pytest.raises(NotFound):
                medium.seal(segment, None, 0)

    def test_as_many_appends_as_allowed_are_under_way_at_once(self, medium: SegmentMedium) -> None:
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        size = limits.align
        offsets = [limits.start + number * size for number in range(min(40, limits.batch_bytes_max // size))]
        with ThreadPoolExecutor(limits.writes_max) as pool:
            batches = list(pool.map(lambda at: self.append(medium, writer, segment, at, size), offsets))
        writer.close()
        assert medium.read(segment, [(at, size) for at in offsets]) == batches
        assert medium.seal(segment, None, len(offsets)) == offsets[-1] + size

    def test_threads_write_segments_of_their_own(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        def work(handle: SegmentMedium) -> None:
            for number in range(3):
                segment, at = new_segment(), handle.limits.start
                writer = handle.create(segment, epoch=1, first_lsn=0)
                for _ in range(5):
                    batch = self.append(handle, writer, segment, at)
                    assert handle.read(segment, [(at, len(batch))]) == [batch]
                    at += len(batch)
                writer.close()
                assert handle.seal(segment, None, number) == at
                assert handle.release([segment]) == {}

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [medium, other, medium, other]))
        assert list(medium.segments()) == list(other.segments()) == []

    # --- sealing ----------------------------------------------------------------------------------------
    def test_a_writer_seals_with_a_footer(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        end = limits.start + len(self.append(medium, writer, segment, limits.start))
        footer = self.batch(medium, segment, end, 1)
        assert medium.seal(segment, [footer[:10], footer[10:]], 3) == end
        for handle in (medium, other):
            assert handle.seal(segment, None, 0) == end
            assert handle.read(segment, [(end, len(footer))]) == [footer]
        with pytest.raises(Conflict):
            writer.append(end, [footer])
        writer.close()
        assert medium.seal(segment, [footer], 3) == end

    def test_a_seal_fences_the_writer_of_another_process(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        first = self.append(medium, writer, segment, limits.start)
        end = limits.start + len(first)
        assert other.seal(segment, None, 0) == end
        for offset in (end, end):
            with pytest.raises(Conflict):
                self.append(medium, writer, segment, offset)
        writer.close()
        assert medium.seal(segment, None, 0) == other.seal(segment, None, 0) == end
        assert medium.read(segment, [(limits.start, len(first))]) == [first]

    def test_every_acknowledged_batch_lies_before_the_end(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        for _ in range(3):
            segment, start = new_segment(), medium.limits.start
            writer = medium.create(segment, epoch=1, first_lsn=0)
            acknowledged: list[int] = []
            under_way = threading.Event()

            def write(
                segment: SegmentId, writer: SegmentWriter, acknowledged: list[int], under_way: threading.Event
            ) -> bool:
                at = medium.limits.start
                while at < medium.limits.segment_bytes:
                    try:
                        at += len(self.append(medium, writer, segment, at))
                    except Conflict:
                        return True
                    acknowledged.append(at)
                    under_way.set()
                return False

            with ThreadPoolExecutor(1) as pool:
                fenced = pool.submit(write, segment, writer, acknowledged, under_way)
                assert under_way.wait(WAIT_S_MAX)
                end = other.seal(segment, None, 0)
                full = not fenced.result()
            writer.close()
            assert full or end == acknowledged[-1]
            assert start < acknowledged[-1] <= end
            assert medium.release([segment]) == {}

    def test_an_empty_segment_is_sealed_by_another_process(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        end = 0 if limits.appends_create_and_seal else limits.start
        assert other.seal(segment, None, 0) == other.seal(segment, None, 0) == end
        for _ in range(2):
            with pytest.raises(Conflict):
                self.append(medium, writer, segment, limits.start)
        writer.close()
        assert medium.seal(segment, None, 0) == end
        assert list(medium.segments()) == list(other.segments()) == [segment]
        assert other.release([segment]) == {}
        assert list(medium.segments()) == []

    def test_an_empty_segment_is_sealed_by_its_own_process(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        end = 0 if limits.appends_create_and_seal else limits.start
        assert medium.seal(segment, None, 0) == medium.seal(segment, None, 0) == end
        with pytest.raises(Conflict):
            self.append(medium, writer, segment, limits.start)
        writer.close()
        assert medium.seal(segment, None, 0) == end
        assert list(other.segments()) == ([] if limits.appends_create_and_seal else [segment])

    @pytest.mark.parametrize("batches", [1, 3])
    def test_the_last_batch_seals(self, medium: SegmentMedium, other: SegmentMedium, batches: int) -> None:
        segment, limits = new_segment(), medium.limits
        writer = medium.create(segment, epoch=1, first_lsn=0)
        end, written = limits.start, b""
        for _ in range(batches - 1):
            written += self.append(medium, writer, segment, end)
            end = limits.start + len(written)
        last = self.batch(medium, segment, end, limits.align)
        end += len(last)
        footer = self.batch(medium, segment, end, 1)
        writer.append(end - len(last), [last], Seal([footer[:10], footer[10:]], batches))
        with pytest.raises(Conflict):
            writer.append(end, [footer])
        writer.close()
        for handle in (medium, other):
            assert handle.seal(segment, None, 0) == end
            assert handle.seal(segment, [footer], 9) == end
            found = handle.read(segment, [(limits.start, end - limits.start), (end, len(footer))])
            assert found == [written + last, footer]
            assert list(handle.segments()) == [segment]
        assert other.release([segment]) == {}

    def test_a_batch_that_would_seal_is_fenced(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        for batches in (0, 1):
            segment, limits = new_segment(), medium.limits
            writer = medium.create(segment, epoch=1, first_lsn=0)
            at = limits.start
            for _ in range(batches):
                at += len(self.append(medium, writer, segment, at))
            end = other.seal(segment, None, 0)
            assert end == (at if batches or not limits.appends_create_and_seal else 0)
            batch = self.batch(medium, segment, at, limits.align)
            with pytest.raises(Conflict):
                writer.append(at, [batch], Seal([self.batch(medium, segment, at + len(batch), 1)], 1))
            writer.close()
            assert medium.seal(segment, None, 0) == end

    def test_of_a_first_batch_and_a_seal_one_is_done(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        for _ in range(6):
            segment, limits, begin = new_segment(), medium.limits, threading.Barrier(2)
            writer = medium.create(segment, epoch=1, first_lsn=0)
            batch = self.batch(medium, segment, limits.start, limits.align)

            def seal(segment: SegmentId, begin: threading.Barrier) -> int:
                begin.wait(WAIT_S_MAX)
                return other.seal(segment, None, 0)

            with ThreadPoolExecutor(1) as pool:
                sealing = pool.submit(seal, segment, begin)
                begin.wait(WAIT_S_MAX)
                try:
                    writer.append(limits.start, [batch])
                    written = True
                except Conflict:
                    written = False
                end = sealing.result()
            writer.close()
            assert (end == limits.start + len(batch)) if written else (end <= limits.start)
            assert medium.seal(segment, None, 0) == end
            assert other.release([segment]) == {}

    def test_seals_at_once_agree_on_the_end(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        """A writer that ends its segment, while another process fences it."""
        for number in range(6):
            segment, limits = new_segment(), medium.limits
            writer = medium.create(segment, epoch=1, first_lsn=0)
            end = limits.start + len(self.append(medium, writer, segment, limits.start))
            writer.close()
            footer = self.batch(medium, segment, end, 1)
            with ThreadPoolExecutor(3) as pool:
                seals = [pool.submit(other.seal, segment, None, 0) for _ in range(number % 3)]
                seals.append(pool.submit(medium.seal, segment, [footer], 1))
                assert {each.result() for each in seals} == {end}
            assert other.seal(segment, None, 0) == end
            assert other.release([segment]) == {}

    # --- changing a few bytes -------------------------------------------------------------------------------
    def test_a_few_bytes_are_replaced_while_the_writer_goes_on(
        self, medium: SegmentMedium, other: SegmentMedium
    ) -> None:
        segment, start = new_segment(), medium.limits.start
        writer = medium.create(segment, 1, 0)
        first = self.append(medium, writer, segment, start)
        medium.overwrite(segment, start + 8, first[8:12], b"void")
        medium.overwrite(segment, start + 8, first[8:12], b"void")
        second = self.append(medium, writer, segment, start + len(first))
        medium.overwrite(segment, start + len(first), second[:4], b"NONE")
        third = self.append(medium, writer, segment, start + len(first + second))
        changed = first[:8] + b"void" + first[12:] + b"NONE" + second[4:] + third
        assert medium.seal(segment, None, 3) == start + len(changed)
        for copy in range(medium.limits.copies):
            assert other.read(segment, [(start, len(changed))], copy) == [changed]

    def test_a_few_bytes_of_a_sealed_segment_are_replaced_by_another_process(
        self, medium: SegmentMedium, other: SegmentMedium
    ) -> None:
        segment, start = new_segment(), medium.limits.start
        first = self.append(medium, medium.create(segment, 1, 0), segment, start)
        end = medium.seal(segment, None, 1)
        other.overwrite(segment, start + 4, first[4:8], b"void")
        assert other.seal(segment, None, 1) == end
        for copy in range(medium.limits.copies):
            assert medium.read(segment, [(start, len(first))], copy) == [first[:4] + b"void" + first[8:]]

    def test_other_bytes_than_expected_are_left_alone(self, medium: SegmentMedium) -> None:
        segment, start = new_segment(), medium.limits.start
        first = self.append(medium, medium.create(segment, 1, 0), segment, start)
        medium.overwrite(segment, start, b"none", b"void")
        assert medium.read(segment, [(start, len(first))]) == [first]
        with pytest.raises(NotFound):
            medium.overwrite(new_segment(), start, b"none", b"void")

    def test_bytes_are_replaced_while_others_are_appended(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        """Several threads replace them in one page, as happens with the refused PUTs of one batch."""
        segment, start = new_segment(), medium.limits.start
        writer = medium.create(segment, 1, 0)
        first = self.append(medium, writer, segment, start, 512)
        places = range(0, 256, 8)

        def replace(at: int) -> None:
            medium.overwrite(segment, start + at, first[at : at + 4], b"%04d" % at)

        with ThreadPoolExecutor(4) as threads:
            done = [threads.submit(replace, at) for at in places]
            second = self.append(medium, writer, segment, start + len(first))
            for each in done:
                each.result()
        expected = bytearray(first)
        for at in places:
            expected[at : at + 4] = b"%04d" % at
        assert other.read(segment, [(start, len(first + second))]) == [bytes(expected) + second]

    # --- giving space back --------------------------------------------------------------------------------
    def test_release(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        gone, kept, start = [new_segment(), new_segment()], new_segment(), medium.limits.start
        batches = {}
        for segment in (*gone, kept):
            writer = medium.create(segment, epoch=1, first_lsn=0)
            batches[segment] = self.append(medium, writer, segment, start)
            writer.close()
            medium.seal(segment, None, 1)
        assert sorted(other.segments()) == sorted([*gone, kept])
        beats: list[int] = []
        for _ in range(2):
            assert other.release([*gone, new_segment()], beats.append) == {}
            for handle in (medium, other):
                assert list(handle.segments()) == [kept]
                for segment in gone:
                    with pytest.raises(NotFound):
                        handle.read(segment, [(start, 1)])
                    self.seal_what_is_not_there(handle, segment)
                assert handle.read(kept, [(start, len(batches[kept]))]) == [batches[kept]]
        assert beats
        assert set(beats) == {0}
        assert medium.release([]) == {}

    def test_a_released_segment_takes_no_append(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        segment, start = new_segment(), medium.limits.start
        writer = medium.create(segment, epoch=1, first_lsn=0)
        end = start + len(self.append(medium, writer, segment, start))
        assert other.seal(segment, None, 0) == end
        assert other.release([segment]) == {}
        successors, ends = [new_segment() for _ in range(2)], []
        for successor in successors:
            following = other.create(successor, epoch=2, first_lsn=0)
            ends.append(start + len(self.append(other, following, successor, start)))
            following.close()
        with pytest.raises((Conflict, NotFound)):
            self.append(medium, writer, segment, end)
        writer.close()
        assert sorted(medium.segments()) == successors
        assert [medium.seal(successor, None, 0) for successor in successors] == ends

    def test_space_is_counted(self, medium: SegmentMedium, other: SegmentMedium) -> None:
        before, free = medium.raw_bytes(), medium.free_bytes()
        segments, start = [new_segment() for _ in range(3)], medium.limits.start
        for segment in segments:
            writer = medium.create(segment, epoch=1, first_lsn=0)
            batch = self.append(medium, writer, segment, start, medium.limits.batch_bytes_max)
            writer.close()
        for handle in (medium, other):
            assert handle.raw_bytes() >= before + 3 * len(batch)
            assert handle.free_bytes() <= free
        assert other.release(segments) == {}
        assert medium.raw_bytes() == other.raw_bytes() == before

    def test_a_probe_changes_nothing(self, medium: SegmentMedium) -> None:
        segment, start = new_segment(), medium.limits.start
        writer = medium.create(segment, epoch=1, first_lsn=0)
        batch = self.append(medium, writer, segment, start)
        for _ in range(3):
            medium.probe()
        assert list(medium.segments()) == [segment]
        assert medium.read(segment, [(start, len(batch))]) == [batch]
        self.append(medium, writer, segment, start + len(batch))
        writer.close()
