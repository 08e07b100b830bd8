"""What a process admits while other processes store objects that it does not see."""

from __future__ import annotations

from io import BytesIO
from threading import Event, Thread

import pytest

from nos_ec.core.errors import QuotaExceeded, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.quotas.quota import Quota, encode
from nos_ec.engine.objects.quotas import FACTS_MS, USED_MS, Admission, Quotas
from nos_ec.ports.metadata import QuotaFacts, Sums
from tests.rig.fakes.clock import SetClock
from tests.rig.waiting import WAIT_S_MAX

KEY = ObjectKey("b", "k")


class Metadata:
    """Buckets of ann, and what they hold together. A read of the bucket `slow` waits until it is `released`."""

    def __init__(self, **limits: int) -> None:
        self.quota: bytes | None = encode(Quota(**limits))
        self.used = Sums()
        self.reads = 0
        self.fails = False
        self.began, self.released = Event(), Event()

    def quota_facts(self, bucket: str) -> QuotaFacts:
        self.reads += 1
        if self.fails:
            raise Transient("away")
        used = self.used
        if bucket == "slow":
            self.began.set()
            assert self.released.wait(WAIT_S_MAX)
        return QuotaFacts(bucket, "ann", None, self.quota, None, used)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def put(quotas: Quotas, metadata: Metadata, size: int, bucket: str = "b") -> None:
    with quotas.admitted(ObjectKey(bucket, "k"), size):
        metadata.used += Sums(size, 1)


def quotas_of(metadata: Metadata, clock: SetClock) -> Quotas:
    return Quotas(metadata, clock)  # type: ignore[arg-type]


def test_a_long_put_is_refused_when_others_have_taken_its_room(clock: SetClock) -> None:
    """Other processes do not know of it until it is recorded, so it would exceed the quota by its whole size."""
    metadata = Metadata(hard_bytes=1000)
    quotas = quotas_of(metadata, clock)

    class Slow(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() == 400:
                put(quotas_of(metadata, clock), metadata, 500)
                clock.advance(USED_MS)
            return super().read(size)

    def put_slowly() -> None:
        with quotas.admitted(KEY, 600) as admission:
            assert isinstance(admission, Admission)
            stream = admission.stream(Slow(bytes(600)))
            while stream.read(200):
                pass

    with pytest.raises(QuotaExceeded, match="1000 bytes, and it would use 1100"):
        put_slowly()
    put(quotas, metadata, 500)


def test_a_long_put_is_not_refused_by_a_quota_that_was_removed(clock: SetClock) -> None:
    metadata = Metadata(hard_bytes=1000)
    with quotas_of(metadata, clock).admitted(KEY, 600) as admission:
        assert isinstance(admission, Admission)
        metadata.used, metadata.quota = Sums(9000, 1), None
        clock.advance(FACTS_MS)
        assert admission.stream(BytesIO(b"piece")).read(5) == b"piece"


def test_an_older_read_of_an_account_does_not_replace_a_newer_one(clock: SetClock) -> None:
    """Two buckets of the account are read at once."""
    metadata = Metadata(hard_bytes=1000)
    quotas = quotas_of(metadata, clock)
    metadata.released.set()
    for bucket in ("slow", "b"):
        put(quotas, metadata, 1, bucket)
    clock.advance(USED_MS)
    metadata.released.clear()
    metadata.began.clear()
    slow = Thread(target=put, args=(quotas, metadata, 1, "slow"))
    slow.start()
    assert metadata.began.wait(WAIT_S_MAX)
    put(quotas, metadata, 600)
    clock.advance(USED_MS)
    put(quotas, metadata, 300)
    metadata.released.set()
    slow.join()
    with pytest.raises(QuotaExceeded):
        put(quotas, metadata, 200)
    assert metadata.used == Sums(903, 5)


def test_usage_that_cannot_be_read_is_not_used_for_long(clock: SetClock) -> None:
    """A thread reads it while others use what is known. If it fails, or hangs, they soon read it themselves."""
    metadata = Metadata(hard_bytes=1000)
    quotas = quotas_of(metadata, clock)
    put(quotas, metadata, 1)
    metadata.used += Sums(5000)
    metadata.fails = True
    clock.advance(USED_MS)
    with pytest.raises(Transient):
        put(quotas, metadata, 1)
    with quotas.admitted(KEY, 1):
        assert metadata.reads == 2, "another thread has just tried it"
    clock.advance(USED_MS)
    for _ in range(2):
        with pytest.raises(Transient):
            put(quotas, metadata, 1)
    metadata.fails = False
    with pytest.raises(QuotaExceeded):
        put(quotas, metadata, 1)


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
def test_a_clock_that_jumps_reads_the_usage_again(
    jump_ms: int, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = Metadata(hard_bytes=1000)
    quotas = quotas_of(metadata, clock)
    put(quotas, metadata, 1)
    metadata.used += Sums(5000)
    now_ms = clock.now_ms() + jump_ms
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms)
    with pytest.raises(QuotaExceeded):
        put(quotas, metadata, 1)


def test_rates_alone_limit_no_usage(clock: SetClock) -> None:
    metadata = Metadata(requests_per_s=1)
    with quotas_of(metadata, clock).admitted(KEY, 1 << 60) as admission:
        assert admission is None
