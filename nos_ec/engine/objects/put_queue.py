"""Gathers the concurrent PUTs of a process into batches, without a thread or a timer of its own.

A PUT that finds a free slot becomes a leader: it takes the waiting PUTs, stores all of them as one batch, passes its
slot to the PUT that has waited longest, and wakes its batch. So a single PUT does not wait, and the next batch gathers
while the current one is stored. There are as many slots as the lander wants concurrent batches.

A batch takes as long as its slowest copy. When every slot has been busy for CALM_S with one batch (a placement group
may be unavailable), some PUTs lead alone in addition to the slots. So copies that hang delay few other PUTs.

1  every PUT gets its own row or its own error, even if the leading thread is interrupted
9  the waiting bytes belong to the callers, each at most one object that is packed, and are not copied. When many wait,
   further PUTs wait before they read their bytes
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
"""A batch that takes longer may hang until the time limit of an operation."""
ALONE_MAX = 64
"""Most PUTs that lead in addition to the slots."""
WAIT_S_MAX = 30.0
"""How long a PUT waits for its turn: the default time limit of Ceph's operations (ceph.op_timeout_ms). Neither the
lander nor the metadata limits this wait."""
WAITING_BYTES_MAX = 64 << 20
"""While more bytes than this wait, further PUTs do not read theirs yet: a few seconds' work of a busy process."""
DOOR_S = 0.02
"""How often such PUTs check again."""
BATCH_OBJECTS_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _Caller:
    """A running PUT."""

    __slots__ = ("_turn", "answer", "batch", "data", "new", "taken")

    def __init__(self, new: NewObject, data: bytes) -> None:
        self.new = new
        self.data = data
        self.answer: ObjectRow | Exception | None = None
        self.taken = False
        """Whether the PUT is in the batch of another caller."""
        self.batch = [self]
        """The PUTs that it stores as a leader."""
        self._turn = Lock()
        self._turn.acquire()

    def wait(self) -> bool:
        """Wait until woken. Returns False after CALM_S. A PUT in a batch waits without limit, because its leader always
        wakes it within the time limits of lander and metadata."""
        return self._turn.acquire(timeout=-1 if self.taken else CALM_S)

    def wake(self) -> None:
        """Let the caller check again."""
        with suppress(RuntimeError):  # the caller was woken already
            self._turn.release()


class PutQueue:
    """The queue of one process's PUTs into one store. Safe to call from several threads.

    timer: returns monotonic seconds.

    A KeyboardInterrupt may come between any two steps of the main thread. So a step with several changes makes them in
    an order that lets `_give_up`, which runs then, complete the step. `_give_up` runs twice, so that a second interrupt
    during the first run leaves no caller waiting.
    """

    def __init__(self, batches: PutBatches, timer: Callable[[], float]) -> None:
        self.batches = batches
        self.batch_objects = Histogram(BATCH_OBJECTS_BOUNDS)
        """The numbers of objects in the batches so far."""
        self._timer = timer
        self._lock = Lock()
        self._waiting: deque[_Caller] = deque()
        self._waiting_bytes = 0
        self._leaders: dict[_Caller, float] = {}
        """The callers that hold a slot, with the time since when."""
        self._alone: set[_Caller] = set()

    @property
    def waiting(self) -> int:
        """The number of PUTs that wait for their turn."""
        return len(self._waiting)

    def wait_for_room(self) -> None:
        """Wait while too many bytes wait. Call this before reading the bytes of a PUT. Raises Transient."""
        waited_s = 0.0
        while self._waiting_bytes > WAITING_BYTES_MAX:
            if waited_s >= WAIT_S_MAX:
                raise self._too_long()
            Event().wait(DOOR_S)
            waited_s += DOOR_S

    def put(self, new: NewObject, data: bytes) -> ObjectRow:
        """Store one object, together with others. Durable on return. Raises PreconditionFailed or NotFound (the
        condition does not hold), NoSpace, Transient."""
        caller = _Caller(new, data)
        try:
            self._store_with_others(caller)
        except BaseException:
            self._give_up(caller)  # again, because a second interrupt may have cut off the first run
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
        """Release all PUTs that wait for a caller that failed or was interrupted. Completes a step that was begun."""
        self._withdraw(caller)
        self._end(caller)

    def _leads(self, caller: _Caller) -> bool:
        """Wait until the caller may lead. Returns False when another caller has stored its object. Raises Transient."""
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
        """Make the caller lead alone if all slots seem to hang and few do so already. Returns whether it leads. Call it
        with the lock held."""
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
        """Take waiting PUTs into the batch, the oldest first, up to the limits of the lander."""
        batch, lander = leader.batch, self.batches.lander
        with self._lock:
            keys = {leader.new.key}
            room = -1 if leader in self._alone else lander.batch_bytes_max - len(leader.data)
            while self._waiting and len(batch) < lander.batch_objects_max:
                oldest = self._waiting[0]
                room -= len(oldest.data)
                # A condition is judged before the batch lands, when the objects of the batch itself do not exist yet.
                if room < 0 or (oldest.new.condition is not None and oldest.new.key in keys):
                    break
                keys.add(oldest.new.key)
                batch.append(oldest)
                oldest.taken = True
                self._drop_oldest()
            self.batch_objects.add(len(batch))

    def _store(self, puts: Sequence[Put]) -> Sequence[ObjectRow | Exception]:
        """Store a batch. If it fails as a whole with an error other than Transient, such as a damaged row that one PUT
        overwrites, nothing is stored yet, and the PUTs are stored one by one."""
        try:
            return self.batches.store_puts(puts)
        except Exception as error:
            if len(puts) == 1:
                return [error]
        return [_in_doubt(self._store([put])[0]) for put in puts]

    def _end(self, leader: _Caller) -> None:
        """Pass the slot on and wake the batch. PUTs without an answer get a Transient."""
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
        """Give free slots to the PUTs that have waited longest. Call it with the lock held."""
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
        """Remove a waiting caller. Returns False if it does not wait."""
        with self._lock:
            if caller not in self._waiting:
                return False
            self._waiting_bytes -= len(caller.data)
            self._waiting.remove(caller)
            return True

    def _too_long(self) -> Transient:
        return Transient(
            f"{len(self._waiting)} PUTs have waited for others for {WAIT_S_MAX:.0f} s: the landing store or the"
            " metadata store is too slow or does not answer; check both, and try again with fewer PUTs at a time"
        )


def _in_doubt(answer: ObjectRow | Exception) -> ObjectRow | Exception:
    """Return the answer to a PUT that may have landed before, with a batch that failed as a whole. These bytes may
    remain, so it must not be answered as refused."""
    return not_voided(answer) if isinstance(answer, REFUSALS) else answer
