"""Judges the alert rules of deploy/prometheus/rules.yml from the store itself, as it is now.

A rule is judged from the same figures that the daemons export, under the names of the metrics. Rules about a single
process, such as the failures of a gateway, cannot be judged from the store: unless Prometheus evaluates them, they are
listed as not evaluated, never as fine. Prometheus alerts only after a rule has held for some time; here it counts at
once. A unit test runs each judge on the series of deploy/prometheus/rules_test.yml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from nos_ec.console.rates.rates import Told
from nos_ec.core.gc.gc_policy import Behind
from nos_ec.core.gc.share import WORKERS_MAX
from nos_ec.core.placement import GroupState
from nos_ec.core.publishing.slots import SLOTS
from nos_ec.core.states import BlockState
from nos_ec.monitoring.declarations import device_metrics as of_devices
from nos_ec.monitoring.declarations import metrics as m
from nos_ec.monitoring.declarations import scrub_metrics as of_scrub
from nos_ec.monitoring.declarations import shard_metrics as of_shards
from nos_ec.monitoring.declarations import space_metrics as of_space
from nos_ec.monitoring.declarations.metric import Metric
from nos_ec.monitoring.exposition import Sample

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
BACKLOG_BYTES_MIN = 64 << 20
RUNBOOK = "docs/MONITORING.md"


class Unknown(Exception):
    """A figure that a rule needs is not known."""


class Severity(StrEnum):
    """How soon somebody has to act."""

    CRITICAL = "critical"
    WARNING = "warning"


class Verdict(StrEnum):
    """The present state of a rule."""

    FIRING = "firing"
    UNKNOWN = "not evaluated"
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Work:
    """The backlog at one time, and the bytes that had ever been written to blocks for users."""

    at_ms: int
    queued_bytes: int
    written_bytes: int


class Seen:
    """The figures that rules are judged from: samples of now, and the work of the last day, oldest first."""

    def __init__(self, samples: Iterable[Sample], works: Sequence[Work], now_ms: int) -> None:
        self._values: dict[str, list[tuple[dict[str, str], float]]] = {}
        for sample in samples:
            if isinstance(sample.value, int | float):
                labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
                self._values.setdefault(sample.metric.name, []).append((labels, sample.value))
        self._works = works
        self.now_s = now_ms / 1000
        self._now_ms = now_ms

    def values(self, metric: Metric, **labels: str) -> list[float]:
        """Return the values of a metric that have these labels, at least one. Raises Unknown."""
        values = [value for its, value in self._values.get(metric.name, []) if labels.items() <= its.items()]
        if not values:
            raise Unknown
        return values

    def work_since(self, age_ms: int) -> tuple[Work, Work]:
        """Return the work at least `age_ms` ago, as late as possible, and the work now. Raises Unknown."""
        earlier = [work for work in self._works if self._now_ms - work.at_ms >= age_ms]
        if not earlier:
            raise Unknown
        return earlier[-1], self._works[-1]


Judge = Callable[[Seen], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. `judge` returns whether it fires and raises Unknown; None if the store does not show it. `unseen` is the
    part of the rule that the store does not show."""

    name: str
    severity: Severity
    meaning: str
    advice: str
    judge: Judge | None = None
    unseen: str = ""

    @property
    def runbook(self) -> str:
        """The section of the documentation that says what to do."""
        return f"{RUNBOOK}#{self.name.lower()}"


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule and what it says now. `told` is what Prometheus says, if the verdict follows from that."""

    rule: Rule
    verdict: Verdict
    told: Told | None = None


def alerts(seen: Seen, told: Mapping[str, Told] | None = None) -> list[Alert]:
    """Return what each rule says: what fires comes first, critical ones before warnings. `told` is what Prometheus says
    about the rules that it has evaluated, by their names."""
    found = [_alert(rule, seen, (told or {}).get(rule.name)) for rule in RULES]
    verdicts, severities = list(Verdict), list(Severity)
    return sorted(found, key=lambda one: (verdicts.index(one.verdict), severities.index(one.rule.severity)))


def _alert(rule: Rule, seen: Seen, told: Told | None) -> Alert:
    """A rule fires if the store or Prometheus shows it; Prometheus also judges what the store does not show."""
    verdict = _verdict(rule, seen)
    if verdict is Verdict.FIRING or told is None:
        return Alert(rule, verdict)
    if told is not Told.INACTIVE:
        return Alert(rule, Verdict.FIRING, told)
    return Alert(rule, Verdict.FINE, told) if verdict is Verdict.UNKNOWN or rule.unseen else Alert(rule, verdict)


def _verdict(rule: Rule, seen: Seen) -> Verdict:
    try:
        if rule.judge is None:
            return Verdict.UNKNOWN
        return Verdict.FIRING if rule.judge(seen) else Verdict.FINE
    except Unknown:
        return Verdict.UNKNOWN


def _any_of(*arms: Judge) -> Judge:
    """Return a judge that fires if one of these does, although others may be unknown."""

    def judge(seen: Seen) -> bool:
        unknown = False
        for arm in arms:
            try:
                if arm(seen):
                    return True
            except Unknown:
                unknown = True
        if unknown:
            raise Unknown
        return False

    return judge


def _free_is_low(metric: Metric) -> Judge:
    return lambda seen: min(seen.values(metric)) < 4 * max(seen.values(m.STORE_RESERVE_BYTES))


def _groups_are(*states: GroupState) -> Judge:
    return lambda seen: any(max(seen.values(m.STORE_PLACEMENT_GROUPS, state=state.value)) > 0 for state in states)


def _shard_lost(seen: Seen) -> bool:
    """Judge by placement groups; in an embedded store, by the shards that the last search has missed."""
    try:
        return _groups_are(GroupState.DEGRADED, GroupState.UNDERSIZED)(seen)
    except Unknown:
        return max(seen.values(of_shards.BLOCKS_SHORT)) > 0


def _standing_still(seen: Seen) -> bool:
    waits_s = max(seen.values(m.STORE_OLDEST_WAITING_SECONDS)) - max(seen.values(m.STORE_WAITING_SECONDS_MAX))
    if waits_s <= 900 and max(seen.values(m.STORE_QUEUED_BYTES)) <= BACKLOG_BYTES_MIN:
        return False
    before, now = seen.work_since(10 * MINUTE_MS)
    return now.written_bytes == before.written_bytes


def _backlog_grows(seen: Seen) -> bool:
    queued_bytes = max(seen.values(m.STORE_QUEUED_BYTES))
    if queued_bytes <= BACKLOG_BYTES_MIN:
        return False
    before, now = seen.work_since(HOUR_MS)
    grown_bytes, packed_bytes = queued_bytes - before.queued_bytes, now.written_bytes - before.written_bytes
    return grown_bytes > 0.1 * queued_bytes and queued_bytes > packed_bytes


def _gc_not_running(seen: Seen) -> bool:
    least_s = seen.now_s - 4 * max(seen.values(m.GC_WAIT_SECONDS))
    if any(seen_s < least_s for seen_s in _gc_workers_seen(seen)):
        return True
    last_s = max(seen.values(m.GC_LAST_RUN))
    if not last_s:
        raise Unknown
    return last_s < least_s


def _gc_workers_seen(seen: Seen) -> Iterator[float]:
    """Yield when each GC worker was last seen. Nothing with a single worker."""
    for worker in range(WORKERS_MAX):
        with suppress(Unknown):
            yield max(seen.values(m.GC_WORKER_SEEN, worker=str(worker)))


def _gc_behind(seen: Seen) -> bool:
    reasons = [_exceeds(of_space.GC_BEHIND, 0, reason=reason.value) for reason in Behind if reason is not Behind.PRICE]
    return _any_of(*reasons)(seen) and not _is_within_target(seen)


def _is_within_target(seen: Seen) -> bool:
    target = max(seen.values(of_space.STORE_SPACE_AMPLIFICATION_TARGET))
    return max(seen.values(of_space.STORE_SPACE_AMPLIFICATION)) <= target


def _scrub_late(seen: Seen) -> bool:
    last_s, interval_s = max(seen.values(of_scrub.SCRUB_LAST_PASS)), max(seen.values(of_scrub.SCRUB_INTERVAL_SECONDS))
    return last_s > 0 and interval_s > 0 and seen.now_s - last_s > 2 * interval_s


def _dump_late(seen: Seen) -> bool:
    last_s = max(seen.values(m.STORE_LAST_DUMP))
    return last_s > 0 and seen.now_s - last_s > 50 * 3600


def _exceeds(metric: Metric, limit: float, **labels: str) -> Judge:
    return lambda seen: max(seen.values(metric, **labels)) > limit


CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING
_FENCED = BlockState.FENCED.value
RULES = (
    Rule(
        "NosEcDataAtRisk",
        CRITICAL,
        "Bytes do not read back as they were written.",
        "Find the disk or machine that damages data; the logs of consumers and GC name the objects.",
    ),
    Rule(
        "NosEcDamageLeft",
        CRITICAL,
        "A scrub found damage that it could not mend.",
        "The log of GC names the shards and objects. `nos-ec check` plans the repairs that are possible.",
        _exceeds(of_scrub.SCRUB_LEFT, 0),
    ),
    Rule(
        "NosEcShardLost",
        WARNING,
        "A shard is lost, so data depends on the spare ones.",
        "Replace the lost disk. On Ceph, `ceph health detail` names it.",
        _shard_lost,
    ),
    Rule(
        "NosEcGroupsInactive",
        CRITICAL,
        "Placement groups are inactive: PUT, GET and packing time out where they need them.",
        "Bring the OSDs back: `ceph health detail` names the groups, `ceph osd tree` the OSDs.",
        _groups_are(GroupState.INACTIVE),
    ),
    Rule(
        "NosEcReadsTimeOut",
        WARNING,
        "Reads of blocks time out.",
        "Look for an OSD that hangs without being marked down: `ceph osd perf`.",
    ),
    Rule(
        "NosEcSpaceLow",
        CRITICAL,
        "The block store or the landing store is nearly full: less than 4 times gc.reserve_bytes is free.",
        "Add space, or delete objects, in the trash as well, and let GC run. PUTs are refused at 2 times.",
        _any_of(_free_is_low(m.STORE_FREE_BYTES), _free_is_low(of_space.STORE_LANDING_FREE_BYTES)),
    ),
    Rule(
        "NosEcUnpublishedSlot",
        CRITICAL,
        "Producers do not hold all slots, so some objects are not published.",
        "Start a producer, or look at the logs of those that run.",
        lambda seen: sum(seen.values(m.PRODUCER_SLOTS)) < SLOTS,
    ),
    Rule(
        "NosEcPublishingFails",
        WARNING,
        "Producers cannot publish.",
        "Look at the logs of the producers: the message log or the metadata store does not answer.",
    ),
    Rule(
        "NosEcOutboxFills",
        CRITICAL,
        "Notifications of buckets are not sent, and more than half of those that may wait do.",
        "Bring Kafka or the topics back: the log of the producers names them.",
    ),
    Rule(
        "NosEcPackingStandsStill",
        CRITICAL,
        "Objects wait, and nothing was written to blocks for 10 minutes.",
        "Start a consumer, or look at /readyz and the logs of those that run: space, a shard or a server is missing.",
        _standing_still,
    ),
    Rule(
        "NosEcObjectsCannotBePacked",
        WARNING,
        "Landing copies have been unreadable for an hour.",
        "The logs of the consumers name them. Restore the placement group or disk that holds them.",
    ),
    Rule(
        "NosEcBacklogGrows",
        WARNING,
        "Packing is slower than PUTs: the backlog grew by more than a tenth in an hour.",
        "Add lanes or consumers while the disks have capacity.",
        _backlog_grows,
    ),
    Rule(
        "NosEcLandingCopiesPileUp",
        WARNING,
        "Landing copies of packed objects have been overdue for deletion for 30 minutes.",
        "The reaper, in consumers and GC, does not run, is too slow, or cannot verify what it reads back: see its log.",
        _exceeds(m.STORE_OVERDUE_DELETION_SECONDS, 1800),
        unseen="copies that the reaper has set aside",
    ),
    Rule(
        "NosEcLandingLogFull",
        WARNING,
        "The landing log has no free segment, so PUTs bypass it.",
        "Find out why segments are not released: packing or the reaper is too slow, or the log is too small.",
        lambda seen: max(seen.values(m.STORE_LANDING_LOG_FREE_BYTES)) == 0,
        unseen="PUTs that found it full for a moment",
    ),
    Rule(
        "NosEcLandingDeviceLost",
        WARNING,
        "A device of the landing log is lost.",
        "`nos-ec status` names it; replace it.",
        _exceeds(of_devices.STORE_LANDING_LOG_DEVICES, 0, state="lost"),
    ),
    Rule(
        "NosEcLandingSlotUnreadable",
        WARNING,
        "Slots of the landing log cannot be read.",
        "`nos-ec check` names them and the objects in them. A disk loses or changes bytes.",
        _exceeds(of_devices.STORE_LANDING_LOG_UNREADABLE_SLOTS, 0),
    ),
    Rule(
        "NosEcGcNotRunning",
        WARNING,
        "The last successful GC run, or the last run of a GC worker, is more than 4 times gc.wait_ms ago.",
        "Start `nos-ec gc run --apply`, as a daemon or from a timer; its log says why it fails.",
        _gc_not_running,
    ),
    Rule(
        "NosEcGcBehind",
        WARNING,
        "GC has not done all that its policy requires, and the store takes more space than gc.space_amp allows.",
        "`nos-ec gc plan` shows the reason.",
        _gc_behind,
    ),
    Rule(
        "NosEcScrubLate",
        WARNING,
        "The last whole scrub ended more than two passes ago.",
        "See the log of GC: a pass takes too long, or scrubs fail.",
        _scrub_late,
    ),
    Rule(
        "NosEcDumpLate",
        WARNING,
        "The newest dump of the metadata is more than 50 hours old.",
        "Run `nos-ec metadata dump`, and read the output of cron or the timer.",
        _dump_late,
    ),
    Rule(
        "NosEcJournalNotWritten",
        WARNING,
        "Deletes of the last 15 minutes are only in the database.",
        "Start GC as a daemon, or run `nos-ec metadata ship-journal` from cron; the log of GC says why it fails.",
        _exceeds(m.STORE_JOURNAL_SECONDS, 900),
    ),
    Rule(
        "NosEcMoveStandsStill",
        WARNING,
        "A bucket is being moved, but nothing moves it.",
        "`nos-ec cells moves` names it; move it again, or give the move up.",
        _exceeds(m.STORE_STALLED_MOVES, 0),
    ),
    Rule(
        "NosEcWritersDie",
        WARNING,
        "Writers die.",
        "Consumers, GC or large PUTs are killed, or stall for longer than store.lease_ttl_ms: see their logs.",
    ),
    Rule(
        "NosEcBlocksWaitForRecovery",
        WARNING,
        "Blocks of dead writers wait for recovery.",
        "Start a consumer or GC, or look at their logs: the block store does not answer.",
        lambda seen: sum(seen.values(m.STORE_BLOCKS, state=_FENCED)) > 0,
    ),
    Rule(
        "NosEcGatewayFails",
        CRITICAL,
        "More than 1 % of the requests to the S3 gateway fail.",
        "The log of the gateway has the reasons.",
    ),
    Rule(
        "NosEcGatewayProcessesDie",
        WARNING,
        "Processes of the S3 gateway die.",
        "The log of the gateway has the exit code of each.",
    ),
    Rule(
        "NosEcQuotaNearlyUsed",
        WARNING,
        "A bucket or an account has used more than 90 % of its quota.",
        "Raise the quota with `nos-ec s3 quota set`, or ask the owner to delete something.",
    ),
    Rule("NosEcDaemonDown", WARNING, "A daemon does not answer.", "Start it, or look at its log."),
    Rule("NosEcMonitoringBlind", WARNING, "Figures are missing.", "The logs of the daemons have the reasons."),
    Rule(
        "NosEcStoresMixed",
        WARNING,
        "Several stores have the same label.",
        "Give each store its own label in the scrape configuration.",
    ),
)
"""The rules in the order of rules.yml."""
