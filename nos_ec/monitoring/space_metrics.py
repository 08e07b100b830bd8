"""The metrics of the target of space, which GC keeps a store within."""

from __future__ import annotations

from nos_ec.monitoring.metric import STORE, Declarations, Metric

_declared = Declarations()
_gauge = _declared.gauge

STORE_SPACE_AMPLIFICATION = _gauge(
    "store_space_amplification",
    STORE,
    "Stored / live bytes in blocks, condemned blocks included, headers and padding not; 0 while nothing lives.",
    "If far above its target for long, `nos-ec gc plan` says what keeps GC from it.",
)
STORE_SPACE_AMPLIFICATION_TARGET = _gauge(
    "store_space_amplification_target",
    STORE,
    "gc.space_amp by the configuration of this process; 0 unless gc.policy is space-target.",
    "Compare with nos_ec_store_space_amplification.",
)

SPACE_METRICS: list[Metric] = _declared.metrics
"""In the order of the reference."""
