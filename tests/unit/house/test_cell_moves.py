"""The clients of the measurement with a bucket that moves (tests/soak/cell_moves.py). Clients that find nothing wrong
in wrong answers would prove nothing."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.soak import cell_moves
from tests.soak.cell_moves import MOVED, STABLE, STILL, Client, Found, Mover, Uploader

STEPS = 200

Answer = dict[str, Any]


class FakeS3:
    """What the clients use of a client of botocore, in memory. `refuses` says whether a call is answered with 503, and
    whether it is executed all the same."""

    def __init__(self, refuses: Callable[[], tuple[bool, bool]] = lambda: (False, True)) -> None:
        self.objects: dict[tuple[str, str], tuple[bytes, dict[str, str]]] = {
            (MOVED, name): (name.encode(), {}) for name in STABLE
        }
        self.objects[STILL, cell_moves.SOURCE] = (cell_moves.SOURCE_DATA, {})
        self.uploads: dict[str, bytes] = {}
        self.lies: dict[str, Callable[[Answer], Answer | None]] = {}
        self._refuses = refuses

    def __getattr__(self, operation: str) -> Callable[..., Answer]:
        def call(**arguments: Any) -> Answer:
            is_refused, is_executed = self._refuses()
            answer: Answer = {}
            if is_executed or not is_refused:
                answer = getattr(self, f"_{operation}")(**arguments) or {}
            if is_refused:
                raise _error("ServiceUnavailable", 503)
            told = self.lies[operation](answer) if operation in self.lies else answer
            if told is None:
                raise _error("NoSuchKey", 404)
            return told

        if operation.startswith("_"):
            raise AttributeError(operation)
        return call

    def _put_object(self, Bucket: str, Key: str, Body: bytes, IfNoneMatch: str = "", IfMatch: str = "") -> Answer:
        known = self.objects.get((Bucket, Key))
        if (IfNoneMatch and known) or (IfMatch and (known is None or IfMatch != _etag(known[0]))):
            raise _error("PreconditionFailed", 412)
        self.objects[Bucket, Key] = (Body, {})
        return {"ETag": _etag(Body)}

    def _put_object_tagging(self, Bucket: str, Key: str, Tagging: Answer) -> None:
        data, _ = self.objects[Bucket, Key]
        self.objects[Bucket, Key] = data, {one["Key"]: one["Value"] for one in Tagging["TagSet"]}

    def _get_object_tagging(self, Bucket: str, Key: str) -> Answer:
        return {"TagSet": [{"Key": key, "Value": value} for key, value in self.objects[Bucket, Key][1].items()]}

    def _copy_object(self, Bucket: str, Key: str, CopySource: Answer) -> None:
        self.objects[Bucket, Key] = self.objects[CopySource["Bucket"], CopySource["Key"]]

    def _delete_object(self, Bucket: str, Key: str) -> None:
        self.objects.pop((Bucket, Key), None)

    def _delete_objects(self, Bucket: str, Delete: Answer) -> Answer:
        for one in Delete["Objects"]:
            self._delete_object(Bucket, one["Key"])
        return {"Deleted": Delete["Objects"]}

    def _get_object(self, Bucket: str, Key: str) -> Answer:
        found = self.objects.get((Bucket, Key))
        if found is None:
            raise _error("NoSuchKey", 404)
        data, tags = found
        return {"Body": io.BytesIO(data), "TagCount": len(tags), "ETag": _etag(data), "ContentLength": len(data)}

    _head_object = _get_object

    def _list_objects_v2(self, Bucket: str, Prefix: str, MaxKeys: int, ContinuationToken: str = "") -> Answer:
        names = sorted(
            name
            for bucket, name in self.objects
            if bucket == Bucket and name.startswith(Prefix) and name > ContinuationToken
        )
        page, is_cut = names[:MaxKeys], len(names) > MaxKeys
        contents = [
            {"Key": name, "ETag": _etag(self.objects[Bucket, name][0]), "Size": len(self.objects[Bucket, name][0])}
            for name in page
        ]
        return {"Contents": contents, "IsTruncated": is_cut, "NextContinuationToken": page[-1] if page else ""}

    def _create_multipart_upload(self, Bucket: str, Key: str) -> Answer:
        upload = f"{Bucket}/{Key}/{len(self.uploads)}"
        self.uploads[upload] = b""
        return {"UploadId": upload}

    def _upload_part(self, Bucket: str, Key: str, UploadId: str, PartNumber: int, Body: bytes) -> Answer:
        assert (Bucket, Key, PartNumber) == (*UploadId.split("/")[:2], 1)
        self.uploads[UploadId] = Body
        return {"ETag": _etag(Body)}

    def _list_parts(self, Bucket: str, Key: str, UploadId: str) -> Answer:
        assert (Bucket, Key) == tuple(UploadId.split("/")[:2])
        data = self.uploads[UploadId]
        return {"Parts": [{"PartNumber": 1, "ETag": _etag(data), "Size": len(data)}]}

    def _complete_multipart_upload(self, Bucket: str, Key: str, UploadId: str, MultipartUpload: Answer) -> Answer:
        assert MultipartUpload["Parts"] == [{"PartNumber": 1, "ETag": _etag(self.uploads[UploadId])}]
        self.objects[Bucket, Key] = self.uploads[UploadId], {}
        return {"ETag": _etag(self.uploads[UploadId])}

    def _abort_multipart_upload(self, Bucket: str, Key: str, UploadId: str) -> None:
        assert (Bucket, Key) == tuple(UploadId.split("/")[:2])
        if self.uploads.pop(UploadId, None) is None:
            raise _error("NoSuchUpload", 404)


def _error(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "called")


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_S", "UPLOAD_PAUSE_S"):
        monkeypatch.setattr(cell_moves, name, 0.0)
    monkeypatch.setattr(cell_moves, "LARGE_BYTES", 5000)


class _After(threading.Event):
    """Is set after it was asked this many times."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._left -= 1
        if self._left < 0:
            self.set()
        return self.is_set()


def seen_by(s3: FakeS3, kind: type[Client] = Client, steps: int = STEPS) -> Found:
    client = kind(s3, kind.__name__.lower(), _After(steps))
    client.run()
    return client.found


def test_right_answers_are_right_however_often_calls_are_refused() -> None:
    chances = Random(7)
    s3 = FakeS3(lambda: (chances.random() < 0.3, chances.random() < 0.5))
    found = seen_by(s3)
    found.add(seen_by(s3, Uploader, 40))
    assert (found.wrong, found.incomplete) == ([], [])
    assert found.calls.keys() == {
        *cell_moves.WRITES,
        *cell_moves.UPLOADS,
        "list parts",
        "get",
        "get tags",
        "head",
        "list",
    }
    assert all(found.refused[kind] for kind in (*cell_moves.WRITES, "complete upload", "list"))
    assert len(found.writes_s) > len(found.refused_s) > 0
    assert sum(found.calls.values()) == len(found.writes_s) + len(found.reads_s)


def _but(name: str, value: object) -> Callable[[Answer], Answer]:
    return lambda answer: answer | {name: value}


def _without(name: str) -> Callable[[Answer], Answer]:
    return lambda answer: answer | {"Contents": [one for one in answer["Contents"] if not one["Key"].startswith(name)]}


@pytest.mark.parametrize(
    ("operation", "lie"),
    [
        ("get_object", lambda _: None),
        ("get_object", lambda answer: answer | {"Body": io.BytesIO(b"something else")}),
        ("get_object", _but("TagCount", 7)),
        ("get_object_tagging", _but("TagSet", [])),
        ("head_object", lambda _: None),
        ("head_object", _but("ETag", '"0"')),
        ("put_object", _but("ETag", '"0"')),
        ("delete_objects", _but("Deleted", [])),
    ],
)
def test_a_wrong_answer_is_found(operation: str, lie: Callable[[Answer], Answer | None]) -> None:
    s3 = FakeS3()
    s3.lies[operation] = lie
    found = seen_by(s3)
    assert found.wrong
    assert found.incomplete == []


@pytest.mark.parametrize(
    "lie",
    [
        _without("client-"),
        _without(STABLE[3]),
        lambda answer: answer | {"Contents": [*answer["Contents"], *answer["Contents"][-1:]]},
        lambda answer: answer | {"Contents": answer["Contents"][::-1]},
        lambda answer: answer | {"Contents": [one | {"Size": 77} for one in answer["Contents"]]},
        _but("IsTruncated", False),
    ],
)
def test_a_wrong_listing_is_found(lie: Callable[[Answer], Answer]) -> None:
    s3 = FakeS3()
    s3.lies["list_objects_v2"] = lie
    found = seen_by(s3)
    assert found.incomplete
    assert found.wrong == []


def test_a_condition_that_is_ignored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FakeS3._put_object
    monkeypatch.setattr(FakeS3, "_put_object", lambda self, *, IfNoneMatch="", IfMatch="", **put: honest(self, **put))
    problems = "\n".join(seen_by(FakeS3()).wrong)
    assert "put if absent of client" in problems
    assert "put if match of client" in problems


def test_a_write_that_takes_effect_twice_is_found() -> None:
    s3 = FakeS3()
    s3.lies["delete_object"] = lambda _: (
        s3.objects.update({(MOVED, f"client-0-{n:02}"): (b"old", {}) for n in range(12)}) or {}
    )
    assert seen_by(s3).wrong or seen_by(s3).incomplete


def test_keys_that_a_cell_refuses_are_deleted_later() -> None:
    s3 = FakeS3()

    def refuse_others(answer: Answer) -> Answer:
        first, *others = answer["Deleted"]
        return {"Deleted": [first], "Errors": [one | {"Code": "ServiceUnavailable"} for one in others]}

    s3.lies["delete_objects"] = refuse_others
    found = seen_by(s3)
    assert (found.wrong, found.incomplete) == ([], [])
    assert found.calls["delete many"] == found.refused["keys of delete many"] > 0


def test_a_call_that_is_refused_for_too_long_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_moves, "REFUSED_S_MAX", 0.0)
    assert "refused for too long" in seen_by(FakeS3(lambda: (True, False)), steps=1).wrong[0]


def test_the_bucket_goes_around(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    answers = iter(
        [
            (7, "each time more had changed than"),
            (7, "each time more had changed than"),
            (0, ""),
        ]
    )

    def command(_: Path, *arguments: str) -> tuple[int, str]:
        ran.append(" ".join(arguments))
        return next(answers, (0, ""))

    monkeypatch.setattr(cell_moves, "command", command)
    mover = Mover(Path())
    assert all(mover.round() for _ in range(3))
    assert ran[:2] == ["cells move moved --to b"] * 2
    assert ran[2:6] == [
        "cells move moved --to b",
        "--cell b metadata dump",
        "cells purge moved --from a",
        "--cell a metadata dump",
    ]
    assert [one for one in ran[6:] if "move moved" in one] == ["cells move moved --to c", "cells move moved --to a"]
    assert mover.not_moved == {"too many changes": 2}
    assert (len(mover.moves_s), mover.problems) == (3, [])


def test_what_cells_have_of_a_wide_bucket_goes_to_other_cells_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def command(_: Path, *arguments: str) -> tuple[int, str]:
        ran.append(" ".join(arguments))
        return 0, ""

    monkeypatch.setattr(cell_moves, "command", command)
    mover = Mover(Path(), is_wide=True)
    assert all(mover.round() for _ in range(4))
    assert [one for one in ran if "move moved" in one] == [
        f"cells move moved --to {there} --from {here}" for here, there in ("ac", "bd", "ca", "db")
    ]


def test_a_bucket_that_always_changes_too_much_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_moves, "command", lambda *_: (7, "each time more had changed than"))
    mover = Mover(Path())
    assert not mover.round()
    assert mover.not_moved == {"too many changes": cell_moves.TRIES_MAX}


def test_what_clients_have_seen_is_passed_on() -> None:
    found = seen_by(FakeS3(), steps=20)
    assert Found.of_json(found.json()) == found
    both = Found.of_json(found.json())
    both.add(found)
    assert sum(both.calls.values()) == 2 * sum(found.calls.values())


def test_a_move_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_moves, "command", lambda *_: (3, "no such cell"))
    mover = Mover(Path())
    assert not mover.round()
    assert mover.problems == ["cells move to b failed: no such cell"]


def test_what_the_report_complains_about(capsys: pytest.CaptureFixture[str]) -> None:
    mover, found = Mover(Path()), Found(wrong=["an answer"], incomplete=["a listing"], writes_s=[0.1, 2.5])
    found.calls.update([*cell_moves.WRITES, *cell_moves.UPLOADS])
    assert cell_moves.report(found, mover) == [
        "an answer",
        "a listing",
        "the bucket was never moved, which proves nothing",
        "there was no call of the kind list",
        "a write waited for 2.50 s",
    ]
    assert "longest 2.50 s" in capsys.readouterr().out
    mover.moves_s.append(1.0)
    assert cell_moves.report(Found(found.calls + Counter(["list"]), writes_s=[0.1]), mover) == []
