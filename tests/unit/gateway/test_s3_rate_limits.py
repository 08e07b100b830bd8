"""The rates of accounts, in one process and in several."""

from __future__ import annotations

import pytest

from nos_ec.core.errors import Transient
from nos_ec.core.quotas.quota import RATE_LEASE_PREFIX, Quota, account_record, encode
from nos_ec.gateway.server.rate_limits import COUNT_MS, KNOWN_MS, LEASE_MS, LISTED_MAX, RateLimits
from nos_ec.ports.metadata import AccessKey, KeyState, Lease
from nos_ec.s3.errors import S3Error
from tests.rig.fakes.clock import SetClock


class Metadata:
    """Records of quotas and leases, in memory."""

    def __init__(self) -> None:
        self.quotas: dict[str, bytes] = {}
        self.leases: dict[str, Lease] = {}
        self.reads = 0
        self.fails = self.is_unreadable = False

    def limit(self, account: str, **rates: int) -> None:
        self.quotas[account_record(account)] = encode(Quota(**rates))

    def access_key(self, name: str) -> AccessKey | None:
        self.reads += 1
        body = self.quotas.get(name)
        return None if body is None else AccessKey(name, "ann", body, KeyState.DISABLED, 1)

    def access_keys(self, after: str, limit: int) -> list[AccessKey]:
        self.reads += 1
        if self.is_unreadable:
            raise Transient("away")
        names = [*self.quotas, "nos_ec:ring"]
        others = [AccessKey(name, "ann", b"?", KeyState.ACTIVE, 1) for name in ("AKIA", "nos_ec:other", "zoe")]
        found = [AccessKey(name, "ann", self.quotas.get(name, b""), KeyState.DISABLED, 1) for name in names]
        return sorted((one for one in [*found, *others] if one.access_key > after), key=lambda one: one.access_key)[
            :limit
        ]

    def acquire_leases(self, names: list[str], now_ms: int, ttl_ms: int) -> list[Lease]:
        if self.fails:
            raise Transient("away")
        made = [Lease(name, 1, now_ms + ttl_ms) for name in names if name not in self.leases]
        self.leases |= {one.name: one for one in made}
        return made

    def renew_leases(self, held: list[Lease], now_ms: int, ttl_ms: int) -> list[Lease]:
        renewed = [Lease(one.name, 1, now_ms + ttl_ms) for one in held if one.name in self.leases]
        self.leases |= {one.name: one for one in renewed}
        return renewed

    def list_leases(self, prefix: str) -> list[Lease]:
        return [one for name, one in self.leases.items() if name.startswith(prefix)]

    def release_leases(self, held: list[Lease]) -> None:
        for one in held:
            self.leases.pop(one.name, None)


@pytest.fixture
def metadata() -> Metadata:
    return Metadata()


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def process(metadata: Metadata, clock: SetClock, name: str = "1") -> RateLimits:
    return RateLimits(metadata, clock, name)  # type: ignore[arg-type]


def admitted(limits: RateLimits, tries: int, received: int = 0) -> int:
    """How many of this many requests of ann are admitted."""
    count = 0
    for _ in range(tries):
        try:
            limits.admit("ann", received)
            count += 1
        except S3Error as error:
            if error.code != "SlowDown":
                raise
    return count


def test_an_account_without_rates_is_not_limited(metadata: Metadata, clock: SetClock) -> None:
    limits = process(metadata, clock)
    metadata.limit("ann", hard_bytes=1)
    assert admitted(limits, 1000, 10**9) == 1000
    assert metadata.leases == {}
    assert metadata.reads == 1
    clock.advance(KNOWN_MS)
    assert admitted(limits, 10) == 10
    assert metadata.reads == 2
    for number in range(50):
        limits.admit(f"other-{number}", 1)
    assert metadata.reads == 2, "all quotas are read at once"


def test_if_many_accounts_have_quotas_they_are_looked_up_one_by_one(metadata: Metadata, clock: SetClock) -> None:
    for number in range(LISTED_MAX + 1):
        metadata.limit(f"a{number}", requests_per_s=2)
    metadata.limit("ann", requests_per_s=3)
    limits = process(metadata, clock)
    assert admitted(limits, 10) == 3
    limits.admit("unlimited", 1)
    limits.admit("unlimited", 1)
    assert metadata.reads == 3
    clock.advance(KNOWN_MS)
    limits.admit("unlimited", 1)
    assert metadata.reads == 5


def test_what_is_not_limited_makes_no_debt(metadata: Metadata, clock: SetClock) -> None:
    metadata.limit("ann", bytes_per_s=10**9)
    limits = process(metadata, clock)
    assert admitted(limits, 1000) == 1000
    metadata.limit("ann", requests_per_s=10)
    clock.advance(KNOWN_MS)
    assert admitted(limits, 30, 10**12) == 10
    metadata.limit("ann", bytes_per_s=10)
    clock.advance(KNOWN_MS)
    assert admitted(limits, 1) == 1


def test_rates_that_cannot_be_read_stay_as_they_were(metadata: Metadata, clock: SetClock) -> None:
    metadata.limit("ann", requests_per_s=2)
    limits = process(metadata, clock)
    assert admitted(limits, 5) == 2
    metadata.is_unreadable = True
    metadata.quotas.clear()
    clock.advance(KNOWN_MS)
    assert admitted(limits, 5) == 2


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
def test_a_clock_that_jumps_stops_no_account_and_gives_it_no_more(
    jump_ms: int, metadata: Metadata, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata.limit("ann", requests_per_s=10)
    limits = process(metadata, clock)
    assert admitted(limits, 30) == 10
    before_ms = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: before_ms + jump_ms)
    assert admitted(limits, 30) <= 10
    monkeypatch.setattr(clock, "now_ms", lambda: before_ms + jump_ms + 500)
    assert admitted(limits, 30) <= 5
    monkeypatch.setattr(clock, "now_ms", lambda: before_ms + jump_ms + 1500)
    assert admitted(limits, 30) == 10


def test_a_process_that_ended_while_its_clock_was_ahead_takes_no_share(metadata: Metadata, clock: SetClock) -> None:
    metadata.limit("ann", requests_per_s=10)
    name = f"{RATE_LEASE_PREFIX}dead"
    metadata.leases[name] = Lease(name, 1, clock.now_ms() + 86_400_000)
    limits = process(metadata, clock)
    admitted(limits, 1)
    clock.advance(1000)
    assert admitted(limits, 30) == 10


def test_requests_are_limited_to_the_rate(metadata: Metadata, clock: SetClock) -> None:
    metadata.limit("ann", requests_per_s=10)
    limits = process(metadata, clock)
    assert admitted(limits, 30) == 10
    clock.advance(500)
    assert admitted(limits, 30) == 5
    clock.advance(60_000)
    assert admitted(limits, 30) == 10, "what was not used is lost"


def test_bytes_make_a_debt(metadata: Metadata, clock: SetClock) -> None:
    metadata.limit("ann", bytes_per_s=1000)
    limits = process(metadata, clock)
    assert admitted(limits, 3, 600) == 2
    clock.advance(200)
    assert admitted(limits, 1) == 0
    clock.advance(1)
    assert admitted(limits, 1) == 1
    limits.charge("ann", 5000)
    clock.advance(4999)
    assert admitted(limits, 1) == 0
    clock.advance(2)
    assert admitted(limits, 1) == 1
    limits.charge("unknown", 5)


def test_processes_share_a_rate(metadata: Metadata, clock: SetClock) -> None:
    metadata.limit("ann", requests_per_s=30)
    limits = [process(metadata, clock, str(number)) for number in range(3)]
    for one in limits:
        admitted(one, 1)
    clock.advance(COUNT_MS)
    assert [admitted(one, 50) for one in limits] == [10, 10, 10]
    limits[0].close()
    clock.advance(COUNT_MS)
    assert [admitted(one, 50) for one in limits[1:]] == [15, 15]
    clock.advance(LEASE_MS)  # one is killed, and its lease ends
    assert admitted(limits[2], 50) == 30


def test_a_lease_that_was_fenced_is_taken_again(metadata: Metadata, clock: SetClock) -> None:
    metadata.limit("ann", requests_per_s=1)
    limits = process(metadata, clock)
    admitted(limits, 1)
    metadata.leases.clear()
    clock.advance(COUNT_MS)
    assert admitted(limits, 5) == 1
    assert list(metadata.leases) == [f"{RATE_LEASE_PREFIX}1"]


def test_requests_go_on_while_processes_cannot_be_counted(metadata: Metadata, clock: SetClock) -> None:
    metadata.limit("ann", requests_per_s=4)
    metadata.fails = True
    assert admitted(process(metadata, clock), 9) == 4


def test_a_changed_or_damaged_quota_applies_after_ten_seconds(metadata: Metadata, clock: SetClock) -> None:
    metadata.limit("ann", requests_per_s=1)
    limits = process(metadata, clock)
    assert admitted(limits, 5) == 1
    metadata.limit("ann", requests_per_s=3)
    clock.advance(KNOWN_MS)
    assert admitted(limits, 5) == 3
    metadata.quotas[account_record("ann")] = b"?"
    clock.advance(KNOWN_MS)
    assert admitted(limits, 5) == 5
