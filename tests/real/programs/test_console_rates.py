"""The rates of the console, from a real Prometheus: of written series, and of real daemons under load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest

from nos_ec.composition.wiring import initialise, open_system
from nos_ec.console.app import create_app
from nos_ec.console.panels import Panels
from nos_ec.console.rates.prometheus import Prometheus
from nos_ec.console.rates.rates import Told, expression, read_rate_history, read_rates, read_rules
from nos_ec.settings import load_settings
from tests.real.conftest import or_skip
from tests.rig.daemons import DaemonProcess
from tests.rig.dev_servers import DevServer, free_port
from tests.rig.prometheus import RULES, compressed, run_promtool
from tests.rig.s3.embedded_gateway import CONFIG
from tests.rig.s3.s3_gateway import Access, GatewayProcess, client_of, create_key
from tests.rig.waiting import until
from tests.unit.console.test_console_security import Client

pytestmark = pytest.mark.real

FACTOR = 60
OBJECTS = 10
SCRAPES = """
global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 500ms}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: nos-ec
    static_configs:
      - targets: [{targets}]
        labels: {{store: tested}}
"""


def test_buckets_are_added_up_and_restarts_and_other_stores_are_not_counted(
    tmp_path: Path, with_promtool: None
) -> None:
    """One process answers 90 requests a minute within 10 ms, and starts again after 5 minutes; another one answers 30 a
    minute, which take up to a second. So p99 is that of the slow ones, and p50 that of the quick ones."""
    get = 'operation="GetObject"'

    def series(name: str, values: str) -> str:
        return f"      - {{series: 'nos_ec_{name}', values: '{values}'}}"

    def process(instance: str, store_id: str, quick: str, whole: str) -> list[str]:
        own = f'job="nos-ec",instance="{instance}"'
        return [
            series(f'info{{{own},store_id="{store_id}"}}', "1x20"),
            series(f's3_request_seconds_bucket{{{own},{get},le="0.01"}}', quick),
            series(f's3_request_seconds_bucket{{{own},{get},le="1"}}', whole),
            series(f's3_request_seconds_bucket{{{own},{get},le="+Inf"}}', whole),
            series(f"s3_request_seconds_count{{{own},{get}}}", whole),
            series(f's3_errors_total{{{own},{get},status="500"}}', quick),
            series(f's3_errors_total{{{own},{get},status="404"}}', quick),
            series(f"gc_moved_objects_total{{{own}}}", "0+60x20"),
        ]

    given = [
        *process("a", "mine", "0+90x5 0+90x15", "0+90x5 0+90x15"),
        *process("b", "mine", "0x20", "0+30x20"),
        *process("c", "other", "0+900x20", "0+900x20"),
    ]
    expected = {"count": 2.0, "errors": 1.5, "p50_s": 0.01 * 60 / 90, "p99_s": 0.01 + 0.99 * (118.8 - 90) / 30}
    lines = ["evaluation_interval: 1m", "tests:", "  - interval: 1m", "    input_series:", *given]
    lines.append("    promql_expr_test:")
    for name, value in ({f"s3-get:{name}": value for name, value in expected.items()} | {"gc:count": 1}).items():
        asked = json.dumps(f'round(({expression("mine", "4m")}) and on (figure) label_replace(vector(1), "figure",'
                           f' "{name}", "", ""), 0.001)')  # fmt: skip
        sample = f"{{labels: '{{figure=\"{name}\"}}', value: {round(value, 3)}}}"
        lines.append(f"      - {{expr: {asked}, eval_time: 20m, exp_samples: [{sample}]}}")
    file = tmp_path / "rates_test.yml"
    file.write_text("\n".join(lines) + "\n")
    ran = run_promtool("test", "rules", file)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@contextmanager
def scraping(folder: Path, ports: list[int]) -> Iterator[str]:
    """The URL of a Prometheus with compressed rules that scrapes these ports."""
    (folder / "rules.yml").write_text(compressed(RULES.read_text(), FACTOR))
    config = folder / "prometheus.yml"
    config.write_text(SCRAPES.format(targets=", ".join(f'"127.0.0.1:{port}"' for port in ports)))
    server = DevServer("prometheus", folder, NOS_EC_DEV_PROMETHEUS_CONFIG=str(config))
    or_skip(server.start)
    try:
        yield server.url
    finally:
        server.stop()


@contextmanager
def daemons(config: Path) -> Iterator[dict[str, DaemonProcess]]:
    found = {kind: DaemonProcess(config, kind, kind) for kind in ("producer", "consumer")}
    try:
        yield found
    finally:
        for one in found.values():
            one.stop()


def test_the_overview_shows_the_rates_of_real_daemons_and_the_alerts_of_prometheus(
    tmp_path: Path, with_promtool: None
) -> None:
    config, s3_port = tmp_path / "nos-ec.toml", free_port()
    config.write_text(CONFIG.replace("[consumer]", "[consumer]\nlinger_max_ms = 0"))
    initialise(load_settings(config, {}))
    key, secret = create_key(config, "ann")
    with (
        daemons(config) as running,
        GatewayProcess(config, tmp_path / "gateway.log", NOS_EC_MONITORING__PORT=str(s3_port)) as gateway,
        scraping(tmp_path, [s3_port, *(one.port for one in running.values())]) as url,
        open_system(load_settings(config, {"NOS_EC_CONSOLE__PROMETHEUS_URL": url})) as system,
        closing(Panels(system.clock, wait_s_max=60)) as panels,
    ):
        prometheus, store_id = Prometheus(url), system.store_id
        s3 = client_of(Access(gateway.url, key, secret))
        s3.create_bucket(Bucket="bucket")
        numbers = count()

        def load() -> bool:
            for name in (str(next(numbers)) for _ in range(OBJECTS)):
                s3.put_object(Bucket="bucket", Key=name, Body=bytes(1000))
                s3.get_object(Bucket="bucket", Key=name)["Body"].read()
            kinds = read_rates(prometheus, store_id).kinds
            return all(kind in kinds and kinds[kind].p99_s is not None for kind in ("s3-put", "s3-get", "pack"))

        until(
            lambda: prometheus.query("up") and load(),
            "all three are measured",
            lambda: str(read_rates(prometheus, store_id)),
        )
        found = read_rates(prometheus, store_id)
        assert (found.answered, found.known) == (3, 3)
        for kind in ("s3-put", "s3-get", "pack"):
            rate = found.kinds[kind]
            assert rate.size_bytes == pytest.approx(1000 * rate.count, rel=0.2)
            assert rate.p50_s is not None
            assert rate.p99_s is not None
            assert 0 < rate.p50_s <= rate.p99_s <= 30
            assert rate.errors == 0
        assert read_rate_history(prometheus, store_id, system.clock.now_ms()).points == [], "no hour has passed"
        told = read_rules(prometheus, store_id)
        assert told["NosEcDaemonDown"] is Told.INACTIVE
        page = Client(create_app(system, panels, None, bytes)).get("/").text
        assert "PUT by S3" in page
        assert "Of 3 processes that it reached in the last hour, 3 answer now" in page
        running["consumer"].kill()
        until(lambda: read_rules(prometheus, store_id)["NosEcDaemonDown"] is Told.FIRING, "the alert fires")
        until(lambda: read_rates(prometheus, store_id).answered == 2, "its figures are stale")
        assert read_rates(prometheus, store_id).known == 3
        with closing(Panels(system.clock, wait_s_max=60)) as fresh:
            page = Client(create_app(system, fresh, None, bytes)).get("/").text
        assert "A daemon does not answer." in page
        assert "NosEcDaemonDown, according to Prometheus" in page
        assert "Of 3 processes that it reached in the last hour, 2 answer now" in page
