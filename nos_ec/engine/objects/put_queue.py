"""Gathers the concurrent PUTs of a process into batches, without a thread or a timer of its own.

A PUT that finds a free slot leads: it takes the PUTs that wait, stores all of them as one batch, hands its slot to the
PUT that has waited longest, and wakes its batch. So a lone PUT waits for nobody, and the batch under way is the window
in which the next one gathers. There are as many slots as the lander wants batches under way.

A batch takes as long as its slowest copy. While every slot has been busy for CALM_S with a batch that does not end (a
placement group may be away), PUTs lead alone, besides the slots: so the copies that hang hold up few others.

1  every PUT gets its own row or its own error, also when the thread that leads is interrupted
9  what waits are the callers' own bytes, each at most an object that is packed; nothing is copied. When many of them
   wait, further PUTs wait before they read their bytes
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Lock

from nos_ec.core.errors import Transient
from nos_ec.core.histogram import Histogram
from nos_ec.engine.landing.lander import not_voided
from nos_ec.engine.objects.put_batches import REFUSALS, Put, PutBatches
from nos_ec.ports.metadata import NewObject, ObjectRow

CALM_S = 1.0
"""A batch that takes longer may hang, until the time limit of an operation is over."""
ALONE_MAX = 64
"""Most PUTs that lead besides the slots."""
WAIT_S_MAX = 30.0
"""How long a PUT waits for its turn: as long as Ceph's operations may take by default (ceph.op_timeout_ms). It is the
only wait that neither the lander nor the metadata limits."""
WAITING_BYTES_MAX = 64 << 20
"""While more than this waits, further PUTs do not read their bytes yet: some seconds' work of a busy process."""
DOOR_S = 0.02
"""How often these look again."""
BATCH_OBJECTS_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _Caller:
    """A PUT under way."""

    __slots__ = ("_turn", "answer", "batch", "data", "new", "taken")

    def __init__(self, new: NewObject, data: bytes) -> None:
        self.new = new
        self.data = data
        self.answer: ObjectRow | Exception | None = None
        self.taken = False
        """Whether it is in the batch of another."""
        self.batch = [self]
        """What it stores when it leads."""
        self._turn = Lock()
        self._turn.acquire()

    def wait(self) -> bool:
        """Wait until woken. Returns False after CALM_S; if it is in a batch, the leader always wakes it: the wait is
        bounded by the time limits of lander and metadata."""
        return self._turn.acquire(timeout=-1 if self.taken else CALM_S)

    def wake(self) -> None:
        """Let it look again."""
        with suppress(RuntimeError):  # it was woken already
            self._turn.release()


class PutQueue:
    """The queue of one process's PUTs into one store. Safe to call from several threads.

    timer: returns monotonic seconds, from any start.

    A KeyboardInterrupt may come between any two steps of the main thread. So each step that changes several things
    changes them in an order in which `_give_up`, which then runs, completes it. That runs twice, so that a second
    interrupt, while it runs, leaves nobody waiting.
    """

    def __init__(self, batches: PutBatches, timer: Callable[[], float]) -> None:
        self.batches = batches
        self.batch_objects = Histogram(BATCH_OBJECTS_BOUNDS)
        """The number of objects of each batch so far."""
        self._timer = timer
        self._lock = Lock()
        self._waiting: deque[_Caller] = deque()
        self._waiting_bytes = 0
        self._leaders: dict[_Caller, float] = {}
        """Who holds a slot, since when."""
        self._alone: set[_Caller] = set()

    @property
    def waiting(self) -> int:
        """PUTs that wait for their turn."""
        return len(self._waiting)

    def wait_for_room(self) -> None:
        """To be called before the bytes of a PUT are read. Raises Transient."""
        waited_s = 0.0
        while self._waiting_bytes > WAITING_BYTES_MAX:
            if waited_s >= WAIT_S_MAX:
                raise self._too_long()
            Event().wait(DOOR_S)
            waited_s += DOOR_S

    def put(self, new: NewObject, data: bytes) -> ObjectRow:
        """Store one object, together with others; durable on return. Raises PreconditionFailed, or NotFound (its
        condition does not hold), NoSpace, Transient."""
        caller = _Caller(new, data)
        try:
            self._store_with_others(caller)
        except BaseException:
            self._give_up(caller)  # once more: a second interrupt may have cut off the first time
            raise
        if isinstance(caller.answer, ObjectRow):
            return caller.answer
        assert caller.answer is not None
        raise caller.answer

    def _store_with_others(self, caller: _Caller) -> None:
        try:
            if self._leads(caller):
                self._lead(caller)
        except BaseException:
            self._give_up(caller)
            raise

    def _give_up(self, caller: _Caller) -> None:
        """Let nobody wait for a caller that has failed or was interrupted. Completes what was done of it before."""
        self._withdraw(caller)
        self._end(caller)

    def _leads(self, caller: _Caller) -> bool:
        """Wait until it is the caller's turn to lead; False when another has stored its object. Raises Transient."""
        with self._lock:
            self._waiting_bytes += len(caller.data)
            self._waiting.append(caller)
            self._fill_slots()
            if caller in self._leaders or self._goes_alone(caller):
                return True
        waited_s = 0.0
        while caller.answer is None:
            woken = caller.wait()
            with self._lock:
                if caller.taken or caller.answer is not None:
                    continue
                if caller in self._leaders or self._goes_alone(caller):
                    return True
            waited_s += 0 if woken else CALM_S
            if waited_s >= WAIT_S_MAX and self._withdraw(caller):
                raise self._too_long()
        return False

    def _goes_alone(self, caller: _Caller) -> bool:
        """Whether all slots seem to hang and one more PUT may lead besides them. Then it does. Holds the lock."""
        now_s = self._timer()
        if len(self._alone) >= ALONE_MAX or any(now_s - since_s <= CALM_S for since_s in self._leaders.values()):
            return False
        self._alone.add(caller)
        self._waiting.remove(caller)
        self._waiting_bytes -= len(caller.data)
        return True

    def _lead(self, caller: _Caller) -> None:
        self._gather(caller)
        answers = self._store([(member.new, member.data) for member in caller.batch])
        for member, answer in zip(caller.batch, answers, strict=True):
            member.answer = answer
        self._end(caller)

    def _gather(self, leader: _Caller) -> None:
        """Take those that wait, the oldest first, up to the lander's limits."""
        batch, lander = leader.batch, self.batches.lander
        with self._lock:
            keys = {leader.new.key}
            room = -1 if leader in self._alone else lander.batch_bytes_max - len(leader.data)
            while self._waiting and len(batch) < lander.batch_objects_max:
                oldest = self._waiting[0]
                room -= len(oldest.data)
                # A condition is judged before the batch lands: objects that the batch itself stores do not exist yet at
                # that point.
                if room < 0 or (oldest.new.condition is not None and oldest.new.key in keys):
                    break
                keys.add(oldest.new.key)
                batch.append(oldest)
                oldest.taken = True
                self._drop_oldest()
            self.batch_objects.add(len(batch))

    def _store(self, puts: Sequence[Put]) -> Sequence[ObjectRow | Exception]:
        """Store a batch. What fails as a whole for another reason than a failure that may pass (damage to a row that
        one of them overwrites, for example) is stored one by one: nothing of it is stored yet."""
        try:
            return self.batches.store(puts)
        except Exception as error:
            if len(puts) == 1:
                return [error]
        return [_in_doubt(self._store([put])[0]) for put in puts]

    def _end(self, leader: _Caller) -> None:
        """Hand the slot on and wake the batch. Those without an answer are told that there will be none."""
        with self._lock:
            self._leaders.pop(leader, None)
            self._alone.discard(leader)
            self._fill_slots()
        for member in leader.batch[1:]:
            if member.answer is None:
                key = member.new.key
                member.answer = Transient(f"{key}: the PUT that led its batch was interrupted; PUT it again", key=key)
            member.wake()

    def _fill_slots(self) -> None:
        """Give free slots to those who have waited longest. Holds the lock."""
        while self._waiting:
            oldest = self._waiting[0]
            if oldest not in self._leaders:
                if len(self._leaders) >= self.batches.lander.batches_max:
                    return
                oldest.wake()
                self._leaders[oldest] = self._timer()
            self._drop_oldest()
        self._waiting_bytes = 0

    def _drop_oldest(self) -> None:
        self._waiting_bytes -= len(self._waiting[0].data)
        self._waiting.popleft()

    def _withdraw(self, caller: _Caller) -> bool:
        """Take it from those that wait. Returns False if it is not among them."""
        with self._lock:
            if caller not in self._waiting:
                return False
            self._waiting_bytes -= len(caller.data)
            self._waiting.remove(caller)
            return True

    def _too_long(self) -> Transient:
        return Transient(
            f"{len(self._waiting)} PUTs have waited for others for {WAIT_S_MAX:.0f} s: landing store or metadata store"
            " is too slow for them, or does not answer; look at both, and try again with fewer at a time"
        )


def _in_doubt(answer: ObjectRow | Exception) -> ObjectRow | Exception:
    """The answer to a PUT that has landed before with a batch that failed as a whole. What landed then may be there, so
    it must not be answered as refused."""
    return not_voided(answer) if isinstance(answer, REFUSALS) else answer
