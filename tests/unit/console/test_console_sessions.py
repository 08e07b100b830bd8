"""Sessions end by themselves, with the token, and are few; wrong tokens are throttled by address."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nos_ec.api.access import Token
from nos_ec.console.access.login_token import Identity, LoginTokens, find_login_tokens
from nos_ec.console.access.security import ATTEMPT_MS, ATTEMPTS_MAX, PARTIES_MAX, Throttle, network_of
from nos_ec.console.access.sessions import AGE_MS_MAX, IDLE_MS_MAX, SESSIONS_MAX, Sessions
from nos_ec.core.errors import ConfigError
from nos_ec.settings import Settings
from tests.rig.fakes.clock import FakeClock

VIEWER = Identity("", Token("a-token-of-more-than-16-characters"))
ANN = Identity("ann", Token("the-token-of-ann-of-16-characters"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sessions(clock: FakeClock) -> Sessions:
    return Sessions(clock, os.urandom)


def test_an_idle_session_ends(sessions: Sessions, clock: FakeClock) -> None:
    session_id = sessions.begin(VIEWER)
    clock.advance(IDLE_MS_MAX - 1)
    assert sessions.use(session_id, [VIEWER])
    clock.advance(IDLE_MS_MAX - 1)
    assert sessions.use(session_id, [VIEWER])
    clock.advance(IDLE_MS_MAX)
    assert not sessions.use(session_id, [VIEWER])
    assert len(sessions) == 0


def test_a_session_that_is_always_used_ends_after_12_hours(sessions: Sessions, clock: FakeClock) -> None:
    session_id = sessions.begin(VIEWER)
    for _ in range(AGE_MS_MAX // 600_000 - 1):
        clock.advance(600_000)
        assert sessions.use(session_id, [VIEWER])
    clock.advance(600_000)
    assert not sessions.use(session_id, [VIEWER])


def test_a_session_ends_when_the_clock_is_set_back_far(sessions: Sessions, clock: FakeClock) -> None:
    session_id = sessions.begin(VIEWER)
    clock._now_ms -= 1000
    assert sessions.use(session_id, [VIEWER])
    clock._now_ms -= IDLE_MS_MAX
    assert not sessions.use(session_id, [VIEWER])


def test_another_token_ends_a_session_for_good(sessions: Sessions) -> None:
    session_id = sessions.begin(VIEWER)
    assert not sessions.use(session_id, [Identity("", Token("another-token-of-16-characters")), ANN])
    assert not sessions.use(session_id, [VIEWER])


def test_a_session_that_was_ended_or_never_was_is_none(sessions: Sessions) -> None:
    session_id = sessions.begin(VIEWER)
    sessions.end(session_id)
    assert not any(sessions.use(one, [VIEWER]) for one in (session_id, "", "0" * 64, "\udc80"))


def test_a_further_session_ends_the_one_that_was_used_least_recently(sessions: Sessions, clock: FakeClock) -> None:
    ids = []
    for _ in range(SESSIONS_MAX):
        ids.append(sessions.begin(VIEWER))
        clock.advance(1)
    assert sessions.use(ids[0], [VIEWER])
    clock.advance(1)
    ids.append(sessions.begin(VIEWER))
    assert len(sessions) == SESSIONS_MAX
    assert [one for one in ids if not sessions.use(one, [VIEWER])] == [ids[1]]


def test_a_form_belongs_to_one_session_of_one_process(sessions: Sessions, clock: FakeClock) -> None:
    one, other = sessions.begin(VIEWER), sessions.begin(VIEWER)
    assert sessions.csrf_matches(one, sessions.csrf(one))
    assert not sessions.csrf_matches(one, sessions.csrf(other))
    assert not sessions.csrf_matches(one, "\udc80")
    assert not sessions.csrf_matches(one, Sessions(clock, os.urandom).csrf(one))


def secret(path: Path, content: str) -> Path:
    path.write_text(content)
    path.chmod(0o600)
    return path


def names(tokens: LoginTokens) -> list[str]:
    return [one.operator for one in tokens.current()]


def test_the_token_may_be_replaced_while_the_console_runs(tmp_path: Path) -> None:
    file = secret(tmp_path / "token", "first-token-of-16-characters\n")
    tokens = LoginTokens(file)
    (first,) = tokens.current()
    assert tokens.find("first-token-of-16-characters") == first
    os.utime(file, ns=(1, 1))
    assert tokens.current() == (first,), "the same token in a file that was touched"
    file.write_text("second-token-of-16-characters\n")
    assert first not in tokens.current()
    assert tokens.find("second-token-of-16-characters") is not None
    assert tokens.find("first-token-of-16-characters") is None
    file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        tokens.current()


def test_operators_come_and_go_without_ending_the_sessions_of_others(tmp_path: Path, sessions: Sessions) -> None:
    file = secret(
        tmp_path / "operators", "ann:the-token-of-ann-of-16-characters\n\n bob.b@x:bobs-token:with-a-colon \n"
    )
    tokens = LoginTokens(None, file)
    assert names(tokens) == ["ann", "bob.b@x"]
    bob = tokens.find("bobs-token:with-a-colon")
    assert bob is not None
    of_ann, of_bob = sessions.begin(ANN), sessions.begin(bob)
    file.write_text("ann:the-token-of-ann-of-16-characters\ncarl:the-token-of-carl-of-16-chars\n")
    assert sessions.use(of_ann, tokens.current()) == ANN
    assert sessions.use(of_bob, tokens.current()) is None
    assert tokens.find("bobs-token:with-a-colon") is None


@pytest.mark.parametrize(("content", "said"), [("short", "at least 16 are needed"), ("a b" * 8, "printable ASCII")])
def test_a_bad_token_is_refused_by_the_name_of_its_setting(tmp_path: Path, content: str, said: str) -> None:
    file = secret(tmp_path / "token", content)
    with pytest.raises(ConfigError, match=f"^console: .*{said}") as refused:
        LoginTokens(file)
    assert refused.value.settings == ("console.token_file",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("ann:the-token-of-ann-of-16-characters\nbob", "line 2: console: the token has 0 characters"),
        ("ann:short", "line 1: console: the token has 5 characters"),
        ("ann:the token of ann of 16 chars", "line 1: .*printable ASCII"),
        (":the-token-of-nobody-at-all", "line 1 does not begin with the name"),
        ("<b>:the-token-of-somebody", "line 1 does not begin with the name"),
        ("\u202eann:the-token-of-somebody", "line 1 does not begin with the name"),
        (f"{'n' * 65}:the-token-of-somebody", "line 1 does not begin with the name"),
        ("ann:the-token-of-somebody\nann:the-token-of-another", "two operators have the same name"),
        ("ann:the-token-of-somebody\nbob:the-token-of-somebody", "a token appears twice"),
        ("ann:a-token-of-more-than-16-characters", "a token appears twice, there or in console.token_file"),
    ],
)
def test_bad_operators_are_refused(tmp_path: Path, content: str, said: str) -> None:
    token = secret(tmp_path / "token", "a-token-of-more-than-16-characters")
    with pytest.raises(ConfigError, match=f"^console.operators_file: .*{said}") as refused:
        LoginTokens(token, secret(tmp_path / "operators", content))
    assert "console.operators_file" in refused.value.settings
    assert "somebody" not in str(refused.value), "no token is shown"


def test_operators_that_every_user_can_read_are_refused(tmp_path: Path) -> None:
    file = secret(tmp_path / "operators", "ann:the-token-of-ann-of-16-characters")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by every user"):
        LoginTokens(None, file)


def console_settings(root: Path, **console: object) -> Settings:
    return Settings.model_validate({"store": {"root": root}, "console": console})


def test_the_console_needs_a_token_unless_only_this_machine_can_reach_it(tmp_path: Path) -> None:
    settings = console_settings(tmp_path)
    with pytest.raises(ConfigError, match="needs a token"):
        find_login_tokens(settings, "127.0.0.1", anonymous=False)
    with pytest.raises(ConfigError, match="only on this machine"):
        find_login_tokens(settings, "0.0.0.0", anonymous=True)
    assert find_login_tokens(settings, "::1", anonymous=True) is None


def test_changes_need_operators_and_an_audit_trail(tmp_path: Path) -> None:
    token = secret(tmp_path / "token", "a-token-of-more-than-16-characters")
    operators = secret(tmp_path / "operators", "ann:the-token-of-ann-of-16-characters")
    settings = console_settings(tmp_path, changes=True, token_file=token, operators_file=operators)
    found = find_login_tokens(settings, "127.0.0.1", anonymous=False)
    assert found is not None
    assert names(found) == ["", "ann"]
    with pytest.raises(ConfigError, match="excludes --anonymous"):
        find_login_tokens(settings, "127.0.0.1", anonymous=True)
    with pytest.raises(ConfigError, match=r"needs console\.operators_file"):
        find_login_tokens(console_settings(tmp_path, changes=True, token_file=token), "127.0.0.1", anonymous=False)
    off = settings.model_copy(update={"audit": settings.audit.model_copy(update={"size_bytes_max": 0})})
    with pytest.raises(ConfigError, match="needs an audit trail"):
        find_login_tokens(off, "127.0.0.1", anonymous=False)


def test_an_address_with_wrong_tokens_waits_and_the_others_do_not(clock: FakeClock) -> None:
    throttle = Throttle(clock)
    for _ in range(ATTEMPTS_MAX):
        assert throttle.allows("a")
        throttle.fail("a")
    assert not throttle.allows("a")
    assert throttle.allows("b")
    clock.advance(ATTEMPT_MS)
    assert throttle.allows("a")
    throttle.fail("a")
    assert not throttle.allows("a")
    clock.advance(ATTEMPTS_MAX * ATTEMPT_MS)
    assert throttle.allows("a")


def test_a_throttle_remembers_a_limited_number_of_parties(clock: FakeClock) -> None:
    throttle = Throttle(clock)
    for number in range(PARTIES_MAX + 50):
        throttle.fail(str(number))
    assert len(throttle._budgets) == PARTIES_MAX


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::2", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "unix", False),
    ],
)
def test_addresses_of_one_network_of_ipv6_are_one_party(one: str, other: str, is_same: bool) -> None:
    assert (network_of(one) == network_of(other)) is is_same


def test_browsers_are_known_while_their_sessions_end_by_themselves(clock: FakeClock) -> None:
    sessions = Sessions(clock, os.urandom)
    idle, left = sessions.begin(VIEWER), sessions.begin(VIEWER)
    assert sessions.known_browser(idle) == "", "its session lasts"
    sessions.end(left)
    clock.advance(IDLE_MS_MAX)
    assert sessions.use(idle, [VIEWER]) is None
    assert sessions.known_browser(idle) not in ("", idle)
    assert [sessions.known_browser(one) for one in (left, sessions.new_id(), "")] == ["", "", ""]
    for _ in range(2 * SESSIONS_MAX):
        sessions.begin(VIEWER)
    assert sessions.known_browser(idle) == "", "only the last ones are known"
    assert len(sessions._ended) <= SESSIONS_MAX
