"""Sessions end by themselves, with the token, and are few; wrong tokens are throttled by address."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nos_ec.api.access import Token
from nos_ec.console.login_token import LoginToken, find_login_token
from nos_ec.console.security import ADDRESSES_MAX, ATTEMPT_MS, ATTEMPTS_MAX, Throttle
from nos_ec.console.sessions import AGE_MS_MAX, IDLE_MS_MAX, SESSIONS_MAX, Sessions
from nos_ec.core.errors import ConfigError
from nos_ec.settings import ConsoleSettings
from tests.rig.fakes.clock import FakeClock

TOKEN = Token("a-token-of-more-than-16-characters")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sessions(clock: FakeClock) -> Sessions:
    return Sessions(clock, os.urandom)


def test_an_idle_session_ends(sessions: Sessions, clock: FakeClock) -> None:
    session_id = sessions.begin(TOKEN)
    clock.advance(IDLE_MS_MAX - 1)
    assert sessions.use(session_id, TOKEN)
    clock.advance(IDLE_MS_MAX - 1)
    assert sessions.use(session_id, TOKEN)
    clock.advance(IDLE_MS_MAX)
    assert not sessions.use(session_id, TOKEN)
    assert len(sessions) == 0


def test_a_session_that_is_always_used_ends_after_12_hours(sessions: Sessions, clock: FakeClock) -> None:
    session_id = sessions.begin(TOKEN)
    for _ in range(AGE_MS_MAX // 600_000 - 1):
        clock.advance(600_000)
        assert sessions.use(session_id, TOKEN)
    clock.advance(600_000)
    assert not sessions.use(session_id, TOKEN)


def test_a_session_ends_when_the_clock_is_set_back_far(sessions: Sessions, clock: FakeClock) -> None:
    session_id = sessions.begin(TOKEN)
    clock._now_ms -= 1000
    assert sessions.use(session_id, TOKEN)
    clock._now_ms -= IDLE_MS_MAX
    assert not sessions.use(session_id, TOKEN)


def test_another_token_ends_a_session_for_good(sessions: Sessions) -> None:
    session_id = sessions.begin(TOKEN)
    assert not sessions.use(session_id, Token("another-token-of-16-characters"))
    assert not sessions.use(session_id, TOKEN)


def test_a_session_that_was_ended_or_never_was_is_none(sessions: Sessions) -> None:
    session_id = sessions.begin(TOKEN)
    sessions.end(session_id)
    assert not any(sessions.use(one, TOKEN) for one in (session_id, "", "0" * 64, "\udc80"))


def test_a_further_session_ends_the_one_that_was_used_least_recently(sessions: Sessions, clock: FakeClock) -> None:
    ids = []
    for _ in range(SESSIONS_MAX):
        ids.append(sessions.begin(TOKEN))
        clock.advance(1)
    assert sessions.use(ids[0], TOKEN)
    clock.advance(1)
    ids.append(sessions.begin(TOKEN))
    assert len(sessions) == SESSIONS_MAX
    assert [one for one in ids if not sessions.use(one, TOKEN)] == [ids[1]]


def test_a_form_belongs_to_one_session_of_one_process(sessions: Sessions, clock: FakeClock) -> None:
    one, other = sessions.begin(TOKEN), sessions.begin(TOKEN)
    assert sessions.csrf_matches(one, sessions.csrf(one))
    assert not sessions.csrf_matches(one, sessions.csrf(other))
    assert not sessions.csrf_matches(one, "\udc80")
    assert not sessions.csrf_matches(one, Sessions(clock, os.urandom).csrf(one))


def test_the_token_may_be_replaced_while_the_console_runs(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first-token-of-16-characters\n")
    file.chmod(0o600)
    token = LoginToken(file)
    first = token.current()
    assert first.matches("first-token-of-16-characters")
    os.utime(file, ns=(1, 1))
    assert token.current() is first, "the same token in a file that was touched"
    file.write_text("second-token-of-16-characters\n")
    assert token.current() is not first
    assert token.current().matches("second-token-of-16-characters")
    file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        token.current()


@pytest.mark.parametrize(("content", "said"), [("short", "at least 16 are needed"), ("a b" * 8, "printable ASCII")])
def test_a_bad_token_is_refused_by_the_name_of_its_setting(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=f"^console: .*{said}") as refused:
        LoginToken(file)
    assert refused.value.settings == ("console.token_file",)


def test_the_console_needs_a_token_unless_only_this_machine_can_reach_it() -> None:
    with pytest.raises(ConfigError, match="needs a token"):
        find_login_token(ConsoleSettings(), "127.0.0.1", anonymous=False)
    with pytest.raises(ConfigError, match="only on this machine"):
        find_login_token(ConsoleSettings(), "0.0.0.0", anonymous=True)
    assert find_login_token(ConsoleSettings(), "::1", anonymous=True) is None


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


def test_a_throttle_remembers_a_limited_number_of_addresses(clock: FakeClock) -> None:
    throttle = Throttle(clock)
    for number in range(ADDRESSES_MAX + 50):
        throttle.fail(str(number))
    assert len(throttle._budgets) == ADDRESSES_MAX
