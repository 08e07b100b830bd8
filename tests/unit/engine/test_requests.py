"""Counting requests, and closing while some are under way."""

from __future__ import annotations

import os
import threading
from itertools import count

import pytest

from nos_ec.core import errors
from nos_ec.core.errors import Blocklisted, InvalidInput, NosError, NotFound, Transient
from nos_ec.engine.figures.requests import ERROR_KINDS, NOTES_MAX, Request, Requests, error_kind
from nos_ec.monitoring.sources import request_samples


def requests() -> Requests:
    """Each look at the clock takes a quarter of a second."""
    return Requests((number / 4 for number in count()).__next__)


def test_successes_are_counted_with_time_and_size() -> None:
    counted = requests()
    for size in (None, 5, 2000):
        with Request(counted, counted.gets) as request:
            assert len(counted.under_way) == 1
            request.size = size
    assert not counted.under_way
    assert (counted.gets.seconds.sum, counted.gets.seconds.cumulative()[-1]) == (0.75, 3)
    assert (counted.gets.sizes.sum, counted.gets.sizes.cumulative()[-1]) == (2005, 2)
    assert counted.puts.seconds.cumulative()[-1] == 0


def test_time_of_the_user_is_left_out() -> None:
    counted = requests()
    with Request(counted, counted.puts) as request:
        request.leave_out(0.2)
    with Request(counted, counted.puts) as request:
        request.leave_untimed()
        request.leave_out(0.2)
        request.size = 7
    assert counted.puts.seconds.sum == pytest.approx(0.05)
    assert counted.puts.seconds.cumulative()[-1] == 1
    assert counted.puts.sizes.cumulative()[-1] == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFound("gone"), "not_found"),
        (Blocklisted("refused"), "blocklisted"),
        (type("NewTransient", (Transient,), {})("new"), "transient"),
        (OSError("disk"), "other"),
        (KeyboardInterrupt(), "other"),
    ],
)
def test_failures_are_counted_by_kind_alone(error: BaseException, kind: str) -> None:
    counted = requests()

    def fails() -> None:
        with Request(counted, counted.heads) as request:
            request.size = 5
            raise error

    with pytest.raises(type(error)):
        fails()
    assert not counted.under_way
    assert {kind: number for kind, number in counted.heads.failures.items() if number} == {kind: 1}
    assert counted.heads.seconds.cumulative()[-1] == counted.heads.sizes.cumulative()[-1] == 0


def test_every_class_of_errors_has_a_kind() -> None:
    classes = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, NosError)}
    assert classes - {NosError} == ERROR_KINDS.keys()
    assert error_kind(NosError()) == "other"


def test_notes_are_added_up_before_there_are_many() -> None:
    counted = requests()
    for _ in range(3 * NOTES_MAX + 7):
        with Request(counted, counted.gets):
            assert len(counted.gets.notes) < NOTES_MAX
    assert len(counted.gets.notes) == 7
    assert counted.gets.seconds.cumulative()[-1] == 3 * NOTES_MAX + 7


def test_no_request_of_any_thread_is_missed_or_counted_twice() -> None:
    counted = Requests(lambda: 0.0)

    def work() -> None:
        for number in range(5000):
            with Request(counted, counted.gets) as request:
                request.size = 1
            if number % 1000 == 0:
                list(request_samples(counted))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.gets.seconds.cumulative()[-1] == counted.gets.sizes.sum == 20_000
    assert not counted.under_way


def test_closing_waits_for_requests_under_way_and_refuses_others() -> None:
    counted = Requests(lambda: 0.0)
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with Request(counted, counted.gets):
            begun.set()
            go_on.wait(60)

    def close() -> None:
        assert counted.close(60)
        closed.set()

    threads = [threading.Thread(target=work), threading.Thread(target=close)]
    threads[0].start()
    assert begun.wait(60)
    assert not counted.close(0.01)
    threads[1].start()
    for _ in range(2):
        with pytest.raises(InvalidInput, match="the store is closed"):
            Request(counted, counted.gets)
    assert len(counted.under_way) == 1
    assert not closed.is_set()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert closed.is_set()


def test_a_forked_process_is_refused() -> None:
    counted = Requests(lambda: 0.0)
    child = os.fork()
    if not child:
        try:
            Request(counted, counted.gets)
        except InvalidInput as error:
            os._exit(0 if "forked" in str(error) and not counted.in_this_process else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with Request(counted, counted.gets):
        assert counted.in_this_process
