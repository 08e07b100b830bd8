"""What the metadata does to the versions of one key, one step after the other: the sequential model of
`version_histories`.

A step is what a caller asked, and judges the answer that it got. The rules are those of `Objects`, `Versions` and
`Trash` in nos_ec/ports/metadata, and of docs/adr/0034. They are written here a second time, on sets, without a word of
how rows are kept, found or locked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from nos_ec.core.versions import Versioning

ENABLED, SUSPENDED = Versioning.ENABLED, Versioning.SUSPENDED


class Kind(StrEnum):
    """What a version is to the rules."""

    OWN_ID = "own id"
    NULL = "null"
    """A null version of a key that may have others."""
    PLAIN = "plain"
    """A null version that was stored without a word of versions."""
    MARKER = "marker"
    NULL_MARKER = "null marker"


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """One version of the key, or a delete marker. tag: what tells its bytes from all others; 0 for a marker.
    conditional: it was added under a condition; nothing shows it."""

    number: int
    kind: Kind
    tag: int = 0
    conditional: bool = field(default=False, compare=False)

    @property
    def is_null(self) -> bool:
        """Whether it has no id of its own."""
        return self.kind not in (Kind.OWN_ID, Kind.MARKER)

    @property
    def is_marker(self) -> bool:
        """Whether it is a delete marker."""
        return self.kind in (Kind.MARKER, Kind.NULL_MARKER)

    def is_asked(self, number: int | None) -> bool:
        """Whether it is what a caller means who names this number, or with None the null version."""
        return self.is_null if number is None else not self.is_null and self.number == number


Versions = frozenset[Version]


@dataclass(frozen=True, slots=True)
class State:
    """Everything that a key has. others: noncurrent versions and markers. floor: the greatest number that was removed,
    or was there when an older version became current. back: the greatest number of a version that became current again,
    after it had been deleted or noncurrent. Nothing shows these two."""

    current: Version | None = None
    others: Versions = frozenset()
    trash: Versions = frozenset()
    floor: int = 0
    back: int = 0

    def asked(self, number: int | None) -> Version | None:
        """The version that this number means (see `Version.is_asked`); of several, the current one, then the newest."""
        if self.current is not None and self.current.is_asked(number):
            return self.current
        return max((one for one in self.others if one.is_asked(number)), default=None)

    @property
    def newest(self) -> int:
        """The greatest number of the key, or 0."""
        return max((one.number for one in (*self.others, *_if_any(self.current))), default=0)

    @property
    def highest(self) -> int:
        """Return the greatest number that the key has, or that was removed from it. Whatever is added gets a greater
        one."""
        return max(self.newest, self.floor)

    @property
    def shown(self) -> State:
        """What can be found out about it."""
        return replace(self, floor=0, back=0)

    def changed(self, current: Version | None, others: Versions, trash: Versions, below: Versions) -> State:
        """Return the key with these versions. below: versions whose numbers the floor must at least cover."""
        return State(current, others, trash, max((self.floor, *(one.number for one in below))), self.back)

    def with_back(self, version: Version) -> State:
        """Return the key after this version became current again."""
        return replace(self, back=max(self.back, version.number))


@dataclass(frozen=True, slots=True)
class Found:
    """The answer that names a version: the one that was made, removed or found. tag: 0 for a delete marker."""

    number: int
    tag: int


Answer = Found | None
"""None: nothing was done, or nothing found."""
LOST = 0
"""The number in the answer of a large PUT that counts as overwritten at once."""


class Impossible(Exception):
    """No store that takes one step after the other gives this answer in this state."""


class Step(ABC):
    """What a caller asks."""

    @abstractmethod
    def follow(self, state: State, answer: Answer) -> State:
        """The state after the step, which got this answer. Raises Impossible."""


@dataclass(frozen=True, slots=True)
class Put(Step):
    """Store a small object (`record_puts`). over: the tag that the current version must have, 0 if there must be none;
    None without a condition."""

    versioning: Versioning | None
    tag: int
    over: int | None = None

    def follow(self, state: State, answer: Answer) -> State:
        """Its number is above the current version's, and above all that were ever there if the key has versions."""
        current, others = state.current, state.others
        if self.over is not None and self.over != (0 if current is None else current.tag):
            return _unchanged(state, answer)
        made = _found(answer, self.tag)
        of_versions = self.versioning or (current is not None and current.kind is not Kind.PLAIN)
        if made.number <= (state.highest if of_versions else _number(current)):
            raise Impossible
        stays = current is not None and _stays(current, self.versioning)
        if (current is None and self.versioning is SUSPENDED) or (stays and self.versioning is not ENABLED):
            others = _without_nulls(others)
        if current is not None and stays:
            others = _beside(others, current)
        version = Version(made.number, _kind(self.versioning, current), self.tag, self.over is not None)
        return state.changed(version, others, state.trash, Versions())


@dataclass(frozen=True, slots=True)
class PutLarge(Step):
    """Store a large object under the number that it got when it began (`record_large`). over: see `Put`."""

    versioning: Versioning | None
    number: int
    tag: int
    over: int | None = None

    def follow(self, state: State, answer: Answer) -> State:
        """Without versions, it takes effect like any other PUT: one that counts as overwritten came just before another
        PUT, and nobody has seen its number. With versions, one that a newer version has overtaken is noncurrent from
        the start if that one leaves it, and else lost. The newer version must have been added without a condition."""
        current, others = state.current, state.others
        if self.over is not None and self.over != (0 if current is None else current.tag):
            return _unchanged(state, answer)
        lost = _found(answer, self.tag).number == LOST
        _found(answer, self.tag, LOST if lost else self.number)
        if self.versioning is None and (current is None or current.kind is Kind.PLAIN):
            if lost and self.number <= _number(current) <= state.back:
                return state  # its clock is slower than that of an earlier PUT, which is current again
            if not lost and self.number <= _number(current):
                raise Impossible
            made = Version(_number(current) if lost else self.number, Kind.PLAIN, self.tag, self.over is not None)
            return state.changed(made, others, state.trash, Versions())
        stays = current is not None and _stays(current, self.versioning)
        newest = state.newest if current is None and self.versioning else _number(current)
        is_below = newest > self.number and (stays or self.versioning is ENABLED)
        wins = is_below or newest < self.number or (current is None and self.versioning is not ENABLED)
        beside = (*others, *_if_any(current)) if stays else others if self.versioning else ()
        if any(one.number == self.number and not one.is_marker for one in beside):
            raise Impossible
        if self.versioning is ENABLED and self.number <= state.floor:
            wins = False  # another version may have had the number
        if is_below or not wins:
            latest = current or max(others, default=None)
            refused = self.over is not None or (latest is not None and latest.conditional)
            if refused or (not wins and self.versioning is ENABLED):
                raise Impossible
        if wins is lost:
            raise Impossible
        if lost:
            return state
        made = Version(self.number, _kind(self.versioning, current), self.tag, self.over is not None)
        if self.versioning is SUSPENDED or (stays and self.versioning is None):
            others = _without_nulls(others)
        if is_below:
            return state.changed(current, _beside(others, made), state.trash, Versions())
        if current is not None and stays:
            others = _beside(others, current)
        newer = Versions(
            one for one in state.others if one.number > self.number and current is None and self.versioning
        )
        return state.changed(made, others, state.trash, newer)


@dataclass(frozen=True, slots=True)
class Delete(Step):
    """Delete the object, knowing of no versions (`Objects.delete`) at this time."""

    in_trash: bool
    now_ms: int

    def follow(self, state: State, answer: Answer) -> State:
        """A null marker hides the other versions of a key whose current version is one of several."""
        current = state.current
        if current is None:
            return _unchanged(state, answer)
        _found(answer, current.tag, current.number)
        gone = _if_any(current) if current.kind is not Kind.OWN_ID else Versions()
        if current.kind is Kind.PLAIN:
            return state.changed(None, state.others, _thrown(state, gone, self.in_trash), Versions())
        least = max(state.highest + 1, self.now_ms * 1000)
        marker = Version(least + least % 2, Kind.NULL_MARKER)  # odd numbers are for what is added under a condition
        trash = _thrown(state, gone | _nulls(state.others), self.in_trash)
        others = _without_nulls(_beside(state.others, current)) | {marker}
        return state.changed(None, others, trash, Versions())


@dataclass(frozen=True, slots=True)
class Mark(Step):
    """Delete the object by a marker (`AddMarker`). seen: the tag that the current version must have; None: any, or no
    current version."""

    versioning: Versioning
    seen: int | None
    in_trash: bool

    def follow(self, state: State, answer: Answer) -> State:
        """The marker is newer than everything that the key ever had."""
        current = state.current
        if self.seen is not None and self.seen != (0 if current is None else current.tag):
            return _unchanged(state, answer)
        number = _found(answer, 0).number
        if number <= state.highest:
            raise Impossible
        others, gone = state.others, Versions()
        if current is not None and _stays(current, self.versioning):
            others = _beside(others, current)
        else:
            gone |= _if_any(current)
        if self.versioning is SUSPENDED:
            gone |= _nulls(others)
            others = _without_nulls(others)
        kind = Kind.MARKER if self.versioning is ENABLED else Kind.NULL_MARKER
        marker = Version(number, kind, conditional=self.seen is not None)
        return state.changed(None, others | {marker}, _thrown(state, gone, self.in_trash), Versions())


@dataclass(frozen=True, slots=True)
class Remove(Step):
    """Delete one version, or marker (`DeleteVersion`). number: None for the null version."""

    number: int | None
    in_trash: bool

    def follow(self, state: State, answer: Answer) -> State:
        """Without a current version, the newest of the others becomes it, unless it is a marker."""
        asked = state.asked(self.number)
        if asked is None:
            return _unchanged(state, answer)
        _found(answer, asked.tag, asked.number)
        gone = Versions({asked}) | (_nulls(state.others) if self.number is None else Versions())
        current = None if asked == state.current else state.current
        others = state.others - {asked}
        if self.number is None:
            others = _without_nulls(others)
        if current is None and others and not max(others).is_marker:
            current = max(others)
            others -= {current}
            state = state.with_back(current)
        return state.changed(current, others, _thrown(state, gone, self.in_trash), Versions({asked}))


@dataclass(frozen=True, slots=True)
class Expire(Step):
    """Remove a noncurrent version, or marker, if this many are newer (`ExpireVersion`, for which long enough has
    passed). tag: 0 for a marker."""

    number: int
    tag: int
    newer: int
    in_trash: bool

    def follow(self, state: State, answer: Answer) -> State:
        """Nothing takes its place. A store that is in doubt may leave it, because lifecycle rules try again."""
        if answer is None:
            return state
        _found(answer, self.tag, self.number)
        noncurrent = sorted(state.others)
        if state.current is None and noncurrent:
            noncurrent.pop()  # the latest one, which is a marker
        gone = next((one for one in noncurrent if (one.number, one.tag) == (self.number, self.tag)), None)
        if gone is None or sum(one.number > self.number for one in noncurrent) < self.newer:
            raise Impossible
        removed = Versions({gone})
        return state.changed(state.current, state.others - removed, _thrown(state, removed, self.in_trash), removed)


@dataclass(frozen=True, slots=True)
class RemoveLoneMarker(Step):
    """Remove a delete marker, if it is all that is left of the key (`ExpireMarker`)."""

    number: int

    def follow(self, state: State, answer: Answer) -> State:
        """A store that is in doubt may leave it. A version that becomes current meanwhile needs no marker, so it may
        go."""
        if answer is None:
            return state
        _found(answer, 0, self.number)
        if [(one.number, one.tag) for one in state.others] != [(self.number, 0)]:
            raise Impossible
        return state.changed(state.current, Versions(), state.trash, state.others)


@dataclass(frozen=True, slots=True)
class Undelete(Step):
    """Take a version out of the trash (`Trash.undelete`)."""

    tag: int

    def follow(self, state: State, answer: Answer) -> State:
        """It becomes current if none is. One that is not in the trash is returned as it is. Versions stored over it are
        newer than all others."""
        there = next((one for one in (*_if_any(state.current), *state.others) if one.tag == self.tag), None)
        if there is not None:
            _found(answer, self.tag, there.number)
            return state
        thrown = next((one for one in state.trash if one.tag == self.tag), None)
        if thrown is None or state.current is not None:
            return _unchanged(state, answer)
        _found(answer, self.tag, thrown.number)
        newer = Versions(one for one in state.others if one.number > thrown.number and thrown.kind is not Kind.PLAIN)
        return state.with_back(thrown).changed(thrown, state.others, state.trash - {thrown}, newer)


@dataclass(frozen=True, slots=True)
class Get(Step):
    """Look the current version up (`Objects.get`)."""

    def follow(self, state: State, answer: Answer) -> State:
        """Nothing changes."""
        return _seen(state, state.current, answer)


@dataclass(frozen=True, slots=True)
class GetVersion(Step):
    """Look one version, or marker, up (`Versions.version`). number: None for the null version."""

    number: int | None

    def follow(self, state: State, answer: Answer) -> State:
        """Nothing changes."""
        return _seen(state, state.asked(self.number), answer)


def _if_any(version: Version | None) -> Versions:
    return Versions() if version is None else Versions({version})


def _number(current: Version | None) -> int:
    return 0 if current is None else current.number


def _nulls(versions: Iterable[Version]) -> Versions:
    return Versions(one for one in versions if one.is_null)


def _without_nulls(versions: Iterable[Version]) -> Versions:
    return Versions(one for one in versions if not one.is_null)


def _beside(others: Versions, version: Version) -> Versions:
    """With this one, which became noncurrent. A marker of the same number gives way."""
    return Versions(one for one in others if one.number != version.number or not one.is_marker) | {version}


def _stays(current: Version, versioning: Versioning | None) -> bool:
    """Whether it becomes noncurrent when something takes its place."""
    return versioning is ENABLED or current.kind is Kind.OWN_ID


def _kind(versioning: Versioning | None, current: Version | None) -> Kind:
    """Of what is stored over this current version."""
    if versioning is ENABLED:
        return Kind.OWN_ID
    return Kind.PLAIN if versioning is None and (current is None or current.kind is Kind.PLAIN) else Kind.NULL


def _thrown(state: State, gone: Versions, in_trash: bool) -> Versions:
    """The trash, after these were removed. Markers never go there."""
    return state.trash | Versions(one for one in gone if not one.is_marker) if in_trash else state.trash


def _found(answer: Answer, tag: int, number: int | None = None) -> Found:
    if answer is None or answer.tag != tag or number not in (None, answer.number):
        raise Impossible
    return answer


def _unchanged(state: State, answer: Answer) -> State:
    if answer is not None:
        raise Impossible
    return state


def _seen(state: State, version: Version | None, answer: Answer) -> State:
    if version is None:
        return _unchanged(state, answer)
    _found(answer, version.tag, version.number)
    return state
