"""What a request has to pass, and what every answer says to the browser."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from nos_ec.api.request_limit import REQUESTS_MAX
from nos_ec.console.access import security
from nos_ec.console.access.login import cookie_name
from nos_ec.console.access.login_token import LoginTokens
from nos_ec.console.access.security import ATTEMPTS_MAX, FORM_BYTES_MAX, IS_TLS
from nos_ec.console.access.sessions import IDLE_MS_MAX
from nos_ec.console.app import guarded
from nos_ec.console.view import View
from nos_ec.core.errors import NotFound, Transient
from tests.rig.fakes.clock import FakeClock

TOKEN = "a-token-of-more-than-16-characters"
PACKAGES = [Path(__file__).parents[3] / "nos_ec" / name for name in ("console", "api")]
SAME = {"Sec-Fetch-Site": "same-origin"}
PAGE = {"Accept": "text/html"}


class Client:
    """A browser without scripts. It keeps cookies and follows no redirects."""

    def __init__(self, app: ASGIApp, address: str = "127.0.0.1", cookies: dict[str, str] | None = None) -> None:
        self.app = app
        self.address = address
        self.cookies = httpx.Cookies(cookies)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._send("GET", path, **options))

    def post(self, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._send("POST", path, **options))

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(self.address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", cookies=self.cookies) as client:
            answer = await client.request(method, path, **options)
            self.cookies = client.cookies
            return answer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return file


def app_of(clock: FakeClock, token_file: Path | None, hosts: str = "") -> ASGIApp:
    view = View("/a/<store>")

    def page(request: Request) -> Response:
        return view.page(request, "error.html", "Hello", text="inside")

    def fail(request: Request) -> Response:
        raise {"404": NotFound("no <such> block"), "503": Transient("away")}.get(
            request.query_params["as"], ValueError("secret details")
        )

    routes = [Route("/", page), Route("/flow", page), Route("/fail", fail)]
    tokens = None if token_file is None else LoginTokens(token_file)
    return guarded(routes, view, clock, tokens, os.urandom, hosts)


@pytest.fixture
def client(clock: FakeClock, token_file: Path) -> Client:
    return Client(app_of(clock, token_file))


def csrf_of(text: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', text)
    assert found is not None
    return found[1]


def log_in(client: Client, token: str = TOKEN, place: str = "/") -> int:
    form = client.get("/login", params={"next": place})
    answer = client.post("/login", data={"csrf": csrf_of(form.text), "token": token, "next": place}, headers=SAME)
    return answer.status_code


def test_nothing_is_shown_without_a_login(client: Client) -> None:
    for path in ("/", "/flow", "/nowhere", "/static/../"):
        answer = client.get(path, headers=PAGE)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login")
        assert client.get(path).status_code == 401, "not a page"
    assert client.post("/logout", headers=SAME).status_code == 401


def test_a_login_lasts_until_the_logout(client: Client) -> None:
    assert log_in(client) == 303
    page = client.get("/")
    assert (page.status_code, "inside" in page.text) == (200, True)
    assert client.get("/login").headers["location"] == "/"
    assert client.post("/logout", data={"csrf": csrf_of(page.text)}, headers=SAME).status_code == 303
    assert client.get("/").status_code == 401


def test_a_stolen_cookie_is_worth_nothing_after_the_logout(client: Client) -> None:
    log_in(client)
    stolen = dict(client.cookies)
    client.post("/logout", data={"csrf": csrf_of(client.get("/").text)}, headers=SAME)
    assert Client(client.app, cookies=stolen).get("/").status_code == 401


def test_the_id_before_the_login_is_not_that_after_it(client: Client) -> None:
    client.get("/login")
    before = client.cookies["nos-ec-console"]
    log_in(client)
    assert client.cookies["nos-ec-console"] != before
    assert Client(client.app, cookies={"nos-ec-console": before}).get("/").status_code == 401


def test_an_idle_session_must_log_in_again(client: Client, clock: FakeClock) -> None:
    log_in(client)
    clock.advance(IDLE_MS_MAX)
    assert client.get("/").status_code == 401


def test_a_new_token_ends_all_sessions(client: Client, token_file: Path) -> None:
    log_in(client)
    token_file.write_text("another-token-of-16-characters")
    assert client.get("/").status_code == 401
    assert log_in(client) == 403
    assert log_in(client, "another-token-of-16-characters") == 303


def test_nobody_gets_in_while_the_token_cannot_be_read(client: Client, token_file: Path) -> None:
    log_in(client)
    token_file.unlink()
    answer = client.get("/")
    assert answer.status_code == 503
    assert str(token_file) not in answer.text


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "\udc80".encode("utf-8", "replace").decode()])
def test_a_wrong_token_is_refused(client: Client, token: str) -> None:
    assert log_in(client, token) == 403
    assert client.get("/").status_code == 401


def test_many_wrong_tokens_slow_down_one_address_and_no_session(clock: FakeClock, token_file: Path) -> None:
    app = app_of(clock, token_file)
    attacker, other, inside = (Client(app, f"10.0.0.{number}") for number in (1, 2, 1))
    assert log_in(inside) == 303
    for _ in range(ATTEMPTS_MAX):
        assert log_in(attacker, "wrong") == 403
    assert log_in(attacker) == 429
    assert log_in(other) == 303
    assert inside.get("/").status_code == 200


def test_who_shares_an_address_cannot_lock_out_a_browser_that_has_logged_in(clock: FakeClock, token_file: Path) -> None:
    app = app_of(clock, token_file)
    attacker, operator, stranger = (Client(app) for _ in range(3))
    assert log_in(operator) == 303
    clock.advance(IDLE_MS_MAX)
    for _ in range(ATTEMPTS_MAX):
        assert log_in(attacker, "wrong") == 403
    assert log_in(stranger) == 429
    assert log_in(operator) == 303
    clock.advance(IDLE_MS_MAX)
    for _ in range(ATTEMPTS_MAX):
        assert log_in(operator, "wrong") == 403
    assert log_in(operator) == 429, "its attempts are limited, too"


@pytest.mark.parametrize(
    ("site", "mode", "destination", "status"),
    [
        ("same-origin", "cors", "empty", 200),
        ("none", "navigate", "document", 200),
        ("cross-site", "navigate", "document", 200),
        ("same-site", "navigate", "document", 200),
        ("cross-site", "navigate", "iframe", 403),
        ("cross-site", "no-cors", "image", 403),
        ("same-site", "no-cors", "script", 403),
        ("same-site", "cors", "empty", 403),
    ],
)
def test_other_pages_may_lead_to_a_page_and_load_nothing(
    clock: FakeClock, site: str, mode: str, destination: str, status: int
) -> None:
    """This also holds without a login, where no cookie is needed."""
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": destination}
    assert Client(app_of(clock, None)).get("/flow", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": "http://localhost"}, True),
        ({"Origin": "http://localhost:9480"}, False),
        ({"Origin": "https://localhost"}, False),
        ({"Origin": "null"}, False),
        ({}, False),
    ],
)
def test_forms_must_come_from_the_console_itself(client: Client, headers: dict[str, str], passes: bool) -> None:
    form = client.get("/login")
    answer = client.post("/login", data={"csrf": csrf_of(form.text), "token": TOKEN}, headers=headers)
    assert answer.status_code == (303 if passes else 403)


def test_forms_must_carry_the_value_of_their_browser(client: Client, clock: FakeClock, token_file: Path) -> None:
    other = Client(client.app)
    foreign = csrf_of(other.get("/login").text)
    client.get("/login")
    for csrf in ("", "0" * 64, foreign):
        assert client.post("/login", data={"csrf": csrf, "token": TOKEN}, headers=SAME).status_code == 403
    log_in(client)
    for csrf in ("", foreign):
        assert client.post("/logout", data={"csrf": csrf}, headers=SAME).status_code == 403
    assert client.get("/").status_code == 200


def test_a_login_without_a_cookie_is_refused(client: Client) -> None:
    assert client.post("/login", data={"csrf": "", "token": TOKEN}, headers=SAME).status_code == 403


def test_a_large_or_odd_form_is_refused(client: Client) -> None:
    client.get("/login")
    large = client.post("/login", content=b"x" * (FORM_BYTES_MAX + 1), headers=SAME)
    many = client.post("/login", content=b"&".join([b"a=1"] * 20), headers=SAME)
    odd = client.post("/login", content=b"csrf=\xff", headers=SAME)
    assert (large.status_code, many.status_code, odd.status_code) == (413, 400, 400)


async def endless() -> AsyncIterator[bytes]:
    yield b"csrf="
    await asyncio.Event().wait()


def test_a_form_that_does_not_arrive_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "FORM_S_MAX", 0.01)
    client.get("/login")
    assert client.post("/login", content=endless(), headers=SAME).status_code == 408


def test_forms_on_their_way_occupy_no_request(client: Client) -> None:
    """More forms than there may be requests at once, and then a page and a form that is too long and does not end."""

    async def long_and_endless() -> AsyncIterator[bytes]:
        yield b"x" * (FORM_BYTES_MAX + 1)
        await asyncio.Event().wait()

    async def run() -> tuple[int, int]:
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
            slow = [
                asyncio.ensure_future(browser.post("/login", content=endless(), headers=SAME))
                for _ in range(REQUESTS_MAX + 1)
            ]
            await asyncio.sleep(0.1)
            answers = (
                await browser.get("/login"),
                await browser.post("/login", content=long_and_endless(), headers=SAME),
            )
            for one in slow:
                one.cancel()
            return answers[0].status_code, answers[1].status_code

    assert asyncio.run(run()) == (200, 413)


@pytest.mark.parametrize(
    ("place", "leads_to"),
    [
        ("/flow?a=1&b=%20", "/flow?a=1&b=%20"),
        ("/objects?bucket=b&prefix=*-._%7E+", "/objects?bucket=b&prefix=*-._%7E+"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nSet-Cookie: x=1", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_a_page_of_the_console(client: Client, place: str, leads_to: str) -> None:
    form = client.get("/login")
    data = {"csrf": csrf_of(form.text), "token": TOKEN, "next": place}
    answer = client.post("/login", data=data, headers=SAME)
    assert answer.headers["location"] == leads_to


@pytest.mark.parametrize(
    "host", ["evil.example", "", "localhost.evil.example", "user@localhost", "console.example.net"]
)
def test_other_names_are_not_answered(clock: FakeClock, token_file: Path, host: str) -> None:
    client = Client(app_of(clock, token_file, "other.example.net"))
    answer = client.get("/login", headers={"Host": host})
    assert answer.status_code == 421
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9490", "[::1]:9490", "a.localhost"])
def test_names_of_this_machine_are_answered(clock: FakeClock, token_file: Path, host: str) -> None:
    client = Client(app_of(clock, token_file))
    assert client.get("/login", headers={"Host": host}).status_code == 200


def test_the_cookie_is_bound_to_the_host_behind_tls(clock: FakeClock, token_file: Path) -> None:
    app = app_of(clock, token_file, "console.example.net, other.example.net:8443")
    for host, is_tls in (("console.example.net", True), ("other.example.net:8443", True), ("localhost", False)):
        cookie = Client(app).get("/login", headers={"Host": host}).headers["set-cookie"]
        assert cookie.startswith(f"{cookie_name({IS_TLS: is_tls})}=")
        assert ("Secure" in cookie, "HttpOnly" in cookie, "Path=/;" in cookie + ";") == (is_tls, True, True)
        assert "Domain" not in cookie
        assert "samesite=lax" in cookie.lower()


def test_a_redirect_behind_tls_leads_to_tls_again(clock: FakeClock, token_file: Path) -> None:
    client = Client(app_of(clock, token_file, "console.example.net"))
    of_proxy = {"Host": "console.example.net"}

    def with_cookie(answer: httpx.Response) -> dict[str, str]:
        # The proxy passes on what a client without TLS would not send.
        return of_proxy | {"Cookie": answer.headers["set-cookie"].partition(";")[0]}

    form = client.get("/login", headers=of_proxy)
    data = {"csrf": csrf_of(form.text), "token": TOKEN}
    answer = client.post("/login", data=data, headers=with_cookie(form) | SAME)
    assert answer.status_code == 303
    found = client.get("/flow/", headers=with_cookie(answer))
    assert (found.status_code, found.headers["location"]) == (307, "https://console.example.net/flow")


def test_every_answer_has_the_headers(client: Client) -> None:
    log_in(client)
    answers = [
        client.get(path)
        for path in ("/", "/login", "/nowhere", "/fail?as=404", "/static/console.css", "/static/nothing")
    ]
    answers += [client.get("/", headers={"Host": "evil.example"}), client.post("/"), client.get("/fail?as=500")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        expected = "no-cache" if answer.url.path == "/static/console.css" else "no-store"
        assert answer.headers["cache-control"] == expected
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(("kind", "status", "said"), [("404", 404, "no &lt;such&gt; block"), ("503", 503, "away")])
def test_an_error_is_a_page(client: Client, kind: str, status: int, said: str) -> None:
    log_in(client)
    answer = client.get(f"/fail?as={kind}")
    assert (answer.status_code, said in answer.text) == (status, True)


def test_a_mistake_of_the_program_shows_no_details(client: Client) -> None:
    log_in(client)
    answer = client.get("/fail?as=500")
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_without_a_token_this_machine_sees_all_pages(clock: FakeClock) -> None:
    client = Client(app_of(clock, None))
    assert client.get("/flow").status_code == 200
    assert client.get("/login").status_code == 404
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 421


def test_a_proxy_shows_nothing_to_others_without_a_token(clock: FakeClock) -> None:
    client = Client(app_of(clock, None, "console.example.net"))
    assert client.get("/", headers={"Host": "console.example.net"}).status_code == 421
    assert client.get("/").status_code == 200


def test_pages_are_text_that_is_escaped_and_scripts_make_no_html() -> None:
    """What would go around the escaping of templates, or the content security policy."""
    forbidden = re.compile(
        r"Markup\(|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\|safe|autoescape false|\bstyle="
        r"|\bon\w+=\"|javascript:|<script>|<style|https?://(?!www\.w3\.org/|127\.0\.0\.1|localhost)"
    )
    found = [
        f"{path.name}: {match[0]}"
        for package in PACKAGES
        for path in package.rglob("*")
        if path.suffix in (".py", ".html", ".js", ".css", ".svg")
        for match in forbidden.finditer(path.read_text().replace("f\"{'https' if is_tls else 'http'}://", ""))
    ]
    assert found == []
