"""The command `nos-ec console`."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.rig.waiting import until
from tests.service.conftest import WAIT_S_MAX, Bench
from tests.service.s3.cell_stores import cells_config, new_cells


def test_the_command_does_not_start_without_a_token(bench: Bench) -> None:
    found = bench.run("console", "--json")
    assert found.returncode == 3
    assert "console.token_file" in json.loads(found.stderr.splitlines()[-1])["message"]


def test_the_command_shows_nobody_on_the_network_a_store_without_a_login(bench: Bench) -> None:
    found = bench.run("console", "--json", "--anonymous", "--host", "0.0.0.0")
    assert found.returncode == 3
    assert "only on this machine" in json.loads(found.stderr.splitlines()[-1])["message"]


@contextmanager
def console_of(config: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running console with the settings of a file, and its URL."""
    token = config.parent / "token"
    token.write_text("a-token-of-more-than-16-characters")
    token.chmod(0o600)
    config.write_text(f'{config.read_text()}\n[console]\ntoken_file = "token"\n')
    command = [sys.executable, "-m", "nos_ec", "--config", str(config), "console", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


def test_the_command_serves_until_it_is_stopped(bench: Bench) -> None:
    with console_of(bench.config) as (process, url):
        answer = httpx.get(f"{url}/", headers={"Accept": "text/html"}, follow_redirects=True, timeout=WAIT_S_MAX)
        assert (answer.status_code, answer.url.path) == (200, "/login")
        style = httpx.get(f"{url}/static/console.css", timeout=WAIT_S_MAX)
        assert (style.status_code, style.headers["content-type"]) == (200, "text/css; charset=utf-8")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S_MAX) == 0


def test_the_command_serves_all_cells_in_one_process(tmp_path: Path) -> None:
    """It also does so while the cell of the directory is away."""
    shutil.rmtree(new_cells(tmp_path, a=1, b=1).of_cell("a").store.root or "")
    with console_of(cells_config(tmp_path, a=1, b=1)) as (process, url):
        with httpx.Client(base_url=url, headers={"Accept": "text/html"}, timeout=WAIT_S_MAX) as client:
            form = client.get("/login").text
            fields = dict(re.findall(r'name="(csrf|next)" value="(.*?)"', form))
            token = {"token": "a-token-of-more-than-16-characters"}
            answer = client.post("/login", data=fields | token, headers={"Sec-Fetch-Site": "same-origin"})
            assert answer.status_code == 303
            until(lambda: client.get("/cells/b/flow").status_code == 200)
            assert client.get("/cells/a/flow").status_code == 503
            assert "Away:" in client.get("/").text
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S_MAX) == 0
