"""A JSON file of what Last night and Overview show, with versions and settings, to attach to a ticket."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nos_ec import __version__
from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.wiring import System
from nos_ec.console.alerts import Alert
from nos_ec.console.last_night import REASON_CHARS_MAX, Daemons, LastNight
from nos_ec.console.overview import RULED, Overview
from nos_ec.console.panels import Panel, Panels
from nos_ec.console.view import utc_text
from nos_ec.engine.dump.stored import newest_dump_ms
from nos_ec.engine.texts import shortened
from nos_ec.monitoring.store_data import osds_down, store_data
from nos_ec.settings import shown_settings


class Report:
    """Makes the file."""

    def __init__(self, system: System, night: LastNight, overview: Overview, panels: Panels) -> None:
        self._system = system
        self._overview = overview
        self._panels = panels
        of_night = {name: source for name, source in night.of_store.items() if name != "letters"}
        self._sources = {
            "status": panels.source(self._status, FIGURES_MS),  # the pages show parts of it
            "backlog": overview.of_store["backlog"],
            "lag": overview.of_store["lag"],
            "gc": overview.of_store["run"],
            **of_night,
            "dead_letters": night.of_store["letters"],
        }

    def make(self) -> Response:
        """Return the file. A panel that cannot be read has the reason as its error, and its last value if it has one.

        The file has ASCII characters only, so that names in it cannot change the direction of the text, and no secrets:
        settings are shown as by `nos-ec config show`. It is bounded by the notes that daemons and events may write.
        """
        rules = (self._overview.of_store[name] for name in RULED)
        self._panels.wait_for(*self._sources.values(), *rules, beside=self._overview.of_prometheus.values())
        system, now_ms = self._system, self._system.clock.now_ms()
        found = {
            "made": utc_text(now_ms),
            "store_id": system.store_id,
            "versions": {"nos_ec": __version__, "python": platform.python_version(), "system": platform.platform()},
            "alerts": [_alert_data(one) for one in self._overview.alerts(self._panels)],
            "panels": {name: _panel_data(name, self._panels.shown(source)) for name, source in self._sources.items()},
            "settings": shown_settings(system.settings),
        }
        # Nothing that users name is in the name of the file.
        name = f"nos_ec-{system.store_id}-{utc_text(now_ms).replace(':', '')}.json"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(json.dumps(found, indent=1, default=asdict), media_type="application/json", headers=headers)

    def _status(self) -> dict[str, Any]:
        """Return what `GET /v1/status` does, without the geometry. Raises Transient."""
        system, now_ms = self._system, self._system.clock.now_ms()
        figures, scrub = system.operator.figures(), system.metadata.scrub_state()
        data = store_data(figures, system.settings.gc.target_space_amp, scrub, newest_dump_ms(system.metadata, now_ms))
        return data | {"osds_down": osds_down(system.groups)}


def _alert_data(one: Alert) -> dict[str, Any]:
    rule = one.rule
    data = {"name": rule.name, "severity": rule.severity, "verdict": one.verdict, "prometheus": one.told}
    return data | {"meaning": rule.meaning, "not_judged": rule.unseen, "runbook": rule.runbook}


def _panel_data(name: str, shown: Panel[Any]) -> dict[str, Any]:
    value = shown.value
    if isinstance(value, Daemons):
        value = [*value.alive, *value.gone]
    elif name == "dead_letters" and value is not None:
        value = [
            {
                "partition": one.message.partition,
                "offset": one.message.offset,
                "reason": shortened(one.reason, REASON_CHARS_MAX),
            }
            for one in value
        ]
    return {"at": None if shown.at_ms is None else utc_text(shown.at_ms), "error": shown.error or None, "value": value}


def routes(system: System, night: LastNight, overview: Overview, panels: Panels) -> list[Route]:
    """Return the route of the file."""
    report = Report(system, night, overview, panels)

    def file(_: Request) -> Response:
        return report.make()

    return [Route("/last-night/report", file)]
