"""Threads that run calls for an event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from nos_ec.gateway.server.workers import ASIDE_BYTES_EACH, ASIDE_BYTES_MAX, Workers

WAIT_S_MAX = 30.0


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(2, "tested")
    yield made
    made.close()


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return uvloop.run(asyncio.wait_for(coroutine, WAIT_S_MAX))


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tested-")]


def test_what_calls_return_and_raise(workers: Workers) -> None:
    async def main() -> None:
        assert await workers.run(divmod, 17, 5) == (3, 2)
        with pytest.raises(ZeroDivisionError):
            await workers.run(divmod, 17, 0)
        with pytest.raises(SystemExit):
            await workers.run(exit)
        assert await workers.run(divmod, 1, 1) == (1, 0), "the thread has survived it"

    run(main())


def test_no_more_threads_than_calls_and_than_allowed(workers: Workers) -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def wait() -> str:
        begun.release()
        assert go_on.wait(WAIT_S_MAX)
        return threading.current_thread().name

    async def main() -> None:
        for _ in range(3):
            assert await workers.run(int) == 0
        assert len(threads()) == 1
        calls = [workers.run(wait) for _ in range(5)]
        for _ in range(2):
            assert begun.acquire(timeout=WAIT_S_MAX)
        assert len(threads()) == 2
        assert not begun.acquire(blocking=False)
        go_on.set()
        assert set(await asyncio.gather(*calls)) <= {"tested-0", "tested-1"}

    run(main())
    workers.close()
    assert threads() == []


def test_a_call_that_is_cancelled_before_its_turn_is_not_run(workers: Workers) -> None:
    go_on, ran = threading.Event(), list[int]()

    async def main() -> None:
        busy = [workers.run(go_on.wait, WAIT_S_MAX) for _ in range(2)]
        cancelled, kept = workers.run(ran.append, 1), workers.run(ran.append, 2)
        cancelled.cancel()
        go_on.set()
        await asyncio.gather(*busy, kept)

    run(main())
    assert ran == [2]


def test_a_call_that_is_cancelled_while_it_runs_ends_without_a_word(workers: Workers) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(WAIT_S_MAX)

    async def main() -> None:
        call = workers.run(wait)
        assert begun.wait(WAIT_S_MAX)
        call.cancel()
        go_on.set()
        for _ in range(3):
            await workers.run(int)
        assert call.cancelled()

    run(main())


def test_closing_drops_what_waits_and_lets_end_what_runs() -> None:
    """It does so even when the loop has ended."""
    workers = Workers(1, "tested")
    go_on, begun, ran = threading.Event(), threading.Event(), list[int]()

    def wait() -> None:
        begun.set()
        assert go_on.wait(WAIT_S_MAX)
        ran.append(1)

    async def main() -> None:
        workers.run(wait)
        assert begun.wait(WAIT_S_MAX)
        workers.run(ran.append, 2)

    run(main())
    threading.Timer(0.1, go_on.set).start()
    workers.close()
    assert ran == [1]
    assert threads() == []


def test_closing_ends_all_threads_when_a_call_steps_aside_meanwhile() -> None:
    """The dropped calls still counted, so a second thread was started, which took the None that ends the first one."""
    workers = Workers(1, "tested")
    go_on, begun, aside, ended = (threading.Event() for _ in range(4))

    def wait() -> None:
        begun.set()
        assert go_on.wait(WAIT_S_MAX)
        with workers.step_aside(1000):
            aside.set()
            assert ended.wait(WAIT_S_MAX)

    async def main() -> None:
        for call in (wait, int, int):
            workers.run(call)
        assert begun.wait(WAIT_S_MAX)

    run(main())
    closing = threading.Thread(target=workers.close, daemon=True)
    closing.start()
    threading.Timer(0.1, go_on.set).start()
    assert aside.wait(WAIT_S_MAX)
    threading.Timer(0.1, ended.set).start()
    closing.join(WAIT_S_MAX)
    assert not closing.is_alive()
    assert threads() == []


def test_answers_are_not_kept(workers: Workers) -> None:
    """A thread that waits for the next call holds no memory of the last one."""

    class Answer:
        pass

    async def main() -> None:
        gone = weakref.ref(await workers.run(Answer))
        await asyncio.sleep(0)
        for _ in range(100):
            gc.collect()
            if gone() is None:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the answer is still in memory")

    run(main())


def test_a_call_that_steps_aside_lets_another_one_run(workers: Workers) -> None:
    """The number of running calls does not change, and each call continues when its turn comes."""
    go_on, running, most, lock = threading.Event(), 0, 0, threading.Lock()

    def count(by: int) -> None:
        nonlocal running, most
        with lock:
            running += by
            most = max(most, running)

    def wait_for_a_client(held_bytes: int) -> None:
        count(1)
        for _ in range(3):
            count(-1)
            with workers.step_aside(held_bytes):
                assert go_on.wait(WAIT_S_MAX)
            count(1)
        count(-1)

    async def main() -> None:
        slow = [workers.run(wait_for_a_client, 1000) for _ in range(50)]
        for _ in range(3):
            assert await workers.run(int) == 0
        assert not any(call.done() for call in slow)
        go_on.set()
        await asyncio.gather(*slow)

    run(main())
    assert most <= 2


def test_calls_with_too_much_in_memory_keep_their_turns(workers: Workers) -> None:
    go_on = threading.Event()
    aside_max = ASIDE_BYTES_MAX // ASIDE_BYTES_EACH

    def wait_for_a_client() -> None:
        with workers.step_aside(1 << 40):
            assert go_on.wait(WAIT_S_MAX)

    async def main() -> None:
        slow = [workers.run(wait_for_a_client) for _ in range(aside_max + 1)]
        assert await workers.run(int) == 0
        slow.append(workers.run(wait_for_a_client))
        late = workers.run(int)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(late), 0.2)
        go_on.set()
        await asyncio.gather(*slow, late)

    run(main())
