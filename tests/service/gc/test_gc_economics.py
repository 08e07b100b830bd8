"""A store costs what the simulation says. tests/soak/gc_economics.py does it with more blocks and on other servers."""

from __future__ import annotations

import pytest

from nos_ec.engine.gc import victims
from tests.rig.gc_economics import Scale, StoreRun, objects_of, settings_lines, simulated
from tests.service.conftest import STORE_CONFIG, Bench

SCALE = Scale(blocks=24, object_bytes=6000, days=400, space_amp=1.4)
CONFIGURED = (
    STORE_CONFIG.replace('policy = "threshold"\nblock_grace_ms = 0\nreserve_bytes = 0\n', settings_lines(SCALE))
    + "[trash]\nkeep_days = 0\n"
)


@pytest.mark.landing("store")
def test_a_store_copies_and_holds_what_the_simulation_says(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workload B, over 400 days of which the second half is measured: within a tenth, by the store's own books. All
    that should live is there, and has its bytes. The simulation knows no padding, so the store does not repack: in so
    small a one, where copies cost nothing, that would copy 3 to 12 % more."""
    monkeypatch.setattr(victims, "REPACK_FREES_MIN", 1.0)
    bench.config.write_text(CONFIGURED)
    with bench.open() as system:
        log = objects_of(SCALE, system.geometry.block_size)
        run = StoreRun(system, SCALE, log, lambda _day: None)
        books = run.run()
        expected = simulated(SCALE, log, system.geometry.block_size)
        assert books.space_amplification == pytest.approx(expected.space_amplification, rel=0.1)
        assert books.space_amplification <= SCALE.space_amp
        assert books.write_amplification == pytest.approx(expected.write_amplification, rel=0.1)
        assert books.write_amplification > 1.5
        living = run.living()
        for key in living[::20]:
            assert system.client.store().get(key) == run.data(key)
        assert sum(
            1 for bucket in log.objects.buckets for _ in system.client.store().list_names(bucket, "", "", 9999)
        ) == len(living)
