"""Measures what S3 clients notice while their bucket moves from cell to cell all the time.

Serves three embedded cells from one process of `nos-ec s3 serve`. A process of clients writes, overwrites, deletes,
copies, lists, reads, uploads in parts and puts conditionally. Some uploads stay unfinished while the bucket moves. Each
client has names of its own, and a model says what it must find. Another process packs and collects in all cells.
Meanwhile `nos-ec cells move` moves the bucket to one cell after the other, with the dumps and the purge that the next
round needs. A write that is refused with 503 is repeated, and waits from its first attempt to its success. At the end,
all objects are read, and `nos-ec check` compares them with the blocks. Exits with 1 after a wrong answer, an incomplete
listing, or a write that waited too long.

With `--wide`, the bucket is a wide one in two cells, and what each of them has of it moves to one of two other cells
and back.

    python tests/soak/cell_moves.py --minutes 20
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field, fields
from itertools import count, cycle, pairwise
from pathlib import Path
from typing import Any, Self

from botocore.exceptions import BotoCoreError, ClientError

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.bench.s3.s3_servers import gateways
from nos_ec.cli.app import run
from nos_ec.composition.cells import open_cells
from nos_ec.ports.metadata import ROOT_ACCOUNT
from nos_ec.settings import Settings, load_settings
from tests.rig.chaos.chaos_moves import commands_of_round
from tests.rig.s3.s3_gateway import Access, client_of
from tests.service.s3.cell_stores import new_cells

CELLS = ("a", "b", "c")
"""The first one has the directory."""
MOVES = [("a", "b"), ("b", "c"), ("c", "a")]
"""From where to where the bucket moves, round after round."""
CELLS_OF_WIDE = (*CELLS, "d")
SLICES = ("a", "b")
MOVES_OF_WIDE = [("a", "c"), ("b", "d"), ("c", "a"), ("d", "b")]
"""A cell never gets other slices than it had before."""
MOVED, STILL = "moved", "still"
"""The bucket that moves, and one that stays in the first cell, from which clients copy."""
SOURCE, SOURCE_DATA = "source", b"copied from another cell"
STABLE = [f"stable-{number:03}" for number in range(200)]
"""Names that exist throughout."""
KEYS = 12
"""How many names a client has."""
SIZES = (0, 10, 5000, 5000, 5000, 60_000)
LARGE_BYTES = 1_200_000
"""The size of an object with blocks of its own."""
LARGE_SHARE = 0.01
PAGE_SIZES = (5, 50, 1000)
"""Of listings of a client's own names. The whole bucket is listed in the two larger ones."""
RETRY_S = 0.05
REFUSED_S_MAX = 120.0
"""A call that is refused for so long is a wrong answer."""
UPLOAD_PAUSE_S = 2.0
"""How long an upload stays unfinished."""
TRIES_MAX = 100
"""How often a move is tried again because of too many changes."""
WRITE_S_MAX = 2.0
STOP_S_MAX = 300.0
WRITES = ("put", "put if absent", "put if match", "tag", "copy", "delete", "delete many")
UPLOADS = ("begin upload", "part", "complete upload", "abort upload")
_CHANGED_SAID = "each time more had changed"


class Wrong(Exception):
    """An answer that the model excludes."""


class Incomplete(Wrong):
    """A listing that the model excludes."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as the model has it. `composed` is the ETag of one that was uploaded in parts."""

    data: bytes
    tags: Mapping[str, str] = field(default_factory=dict)
    composed: str = ""

    @property
    def etag(self) -> str:
        """The MD5 of the data, as S3 quotes it, unless it is composed."""
        return self.composed or f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass(slots=True)
class Found:
    """What clients have seen: calls and their 503 answers by kind, and how long calls took, in seconds, from their
    first attempt to their success. `refused_s` has those writes that were refused at least once."""

    calls: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    reads_s: list[float] = field(default_factory=list)
    writes_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Read what `json` has written."""
        found = cls(**json.loads(text))
        found.calls, found.refused = Counter(found.calls), Counter(found.refused)
        return found

    def json(self) -> str:
        """Return this as JSON."""
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    def add(self, other: Found) -> None:
        """Add what another client has seen."""
        self.calls.update(other.calls)
        self.refused.update(other.refused)
        for name in ("reads_s", "writes_s", "refused_s", "wrong", "incomplete"):
            getattr(self, name).extend(getattr(other, name))


# --- clients --------------------------------------------------------------------------------------
class Client(threading.Thread):
    """Calls a gateway until `stop` is set, and then looks at all its names once more. After a wrong answer it begins
    again with other names."""

    def __init__(self, s3: Any, name: str, stop: threading.Event, pause_s: float = 0.0) -> None:
        """`s3` is a client of botocore that tries once. `name` also chooses what the client does."""
        super().__init__(name=name)
        self.found = Found()
        self.model: dict[str, Stored] = {}
        self._s3 = s3
        self._stop_event = stop
        self._pause_s = pause_s
        self._random = random.Random(name)
        self._prefix = f"{name}-0-"
        self._acts: Mapping[Callable[[], None], int] = {
            self.put: 25,
            self.put_if_absent: 10,
            self.put_if_match: 8,
            self.tag: 5,
            self.copy: 5,
            self.delete: 8,
            self.delete_many: 4,
            self.get: 15,
            self.head: 5,
            self.list: 10,
        }

    def run(self) -> None:
        """See Thread."""
        for round_number in count():
            self.model, self._prefix = {}, f"{self.name}-{round_number}-"
            try:
                while not self._stop_event.wait(self._pause_s):
                    self.step()
                self.finish()
            except Incomplete as error:
                self.found.incomplete.append(f"{self.name}: {error}")
            except (Wrong, ClientError, BotoCoreError) as error:
                self.found.wrong.append(f"{self.name}: {type(error).__name__}: {error}")
            if self._stop_event.is_set():
                return

    def step(self) -> None:
        """Make one call."""
        self._random.choices(list(self._acts), list(self._acts.values()))[0]()

    def finish(self) -> None:
        """Compare everything with the model."""
        for name in self._names():
            self.get(name)
        self.list("", 1000)

    def _names(self) -> list[str]:
        return [f"{self._prefix}{number:02}" for number in range(KEYS)]

    def _any_name(self) -> str:
        return self._random.choice(self._names())

    def _existing(self) -> str:
        return self._random.choice(list(self.model)) if self.model else self._any_name()

    def _new(self) -> Stored:
        is_large = self._random.random() < LARGE_SHARE
        return Stored(self._random.randbytes(LARGE_BYTES if is_large else self._random.choice(SIZES)))

    # --- writes -----------------------------------------------------------------------------------
    def put(self) -> None:
        """Store an object, which may replace one."""
        name, new = self._any_name(), self._new()
        answer = self._ask("put", "put_object", Key=name, Body=new.data)
        self._require(answer["ETag"] == new.etag, f"PUT of {name} was answered with another ETag")
        self.model[name] = new

    def put_if_absent(self) -> None:
        """Store an object unless there is one."""
        name, new = self._any_name(), self._new()
        self._conditional("put if absent", name, new, name not in self.model, IfNoneMatch="*")

    def put_if_match(self) -> None:
        """Replace an object, or fail because it is not as the client says."""
        name, new = self._existing(), self._new()
        if name not in self.model:
            return
        is_right = self._random.random() < 0.7
        etag = self.model[name].etag if is_right else '"00000000000000000000000000000000"'
        self._conditional("put if match", name, new, is_right, IfMatch=etag)

    def _conditional(self, kind: str, name: str, new: Stored, holds: bool, **condition: str) -> None:
        refused = self.found.refused[kind]
        try:
            self._ask(kind, "put_object", Key=name, Body=new.data, **condition)
        except ClientError as error:
            if _code(error) != "PreconditionFailed":
                raise
            if holds:
                # Its first attempt may have been executed although it was answered with 503.
                self._require(self.found.refused[kind] > refused, f"{kind} of {name} was refused")
                data = self._ask("get", "get_object", Key=name)["Body"].read()
                self._require(data == new.data, f"{kind} of {name} was refused, and not because of itself")
                self.model[name] = new
        else:
            self._require(holds, f"{kind} of {name} was not refused")
            self.model[name] = new

    def tag(self) -> None:
        """Change the tags of an object."""
        name = self._existing()
        if name in self.model:
            tags = {"number": str(self._random.randrange(1000))}
            self._ask("tag", "put_object_tagging", Key=name, Tagging={"TagSet": _tag_set(tags)})
            self.model[name] = Stored(self.model[name].data, tags)

    def copy(self) -> None:
        """Copy an object of this bucket, or one that is in another cell most of the time."""
        name, source = self._any_name(), self._existing()
        is_here = source in self.model and self._random.random() < 0.7 and source != name
        stored = self.model[source] if is_here else Stored(SOURCE_DATA)
        where = {"Bucket": MOVED, "Key": source} if is_here else {"Bucket": STILL, "Key": SOURCE}
        self._ask("copy", "copy_object", Key=name, CopySource=where)
        self.model[name] = stored

    def delete(self) -> None:
        """Delete an object, which may not exist."""
        name = self._any_name()
        self._ask("delete", "delete_object", Key=name)
        self.model.pop(name, None)

    def delete_many(self) -> None:
        """Delete some objects with one call, and with further ones those that a cell of a wide bucket has refused."""
        names, begun_s = self._random.sample(self._names(), 3), time.monotonic()
        while names:
            answer = self._ask("delete many", "delete_objects", Delete={"Objects": [{"Key": name} for name in names]})
            deleted = {one["Key"] for one in answer.get("Deleted", [])}
            refused = {one["Key"] for one in answer.get("Errors", []) if one["Code"] == "ServiceUnavailable"}
            is_right = (deleted | refused, deleted & refused) == (set(names), set())
            self._require(is_right and bool(deleted), f"DeleteObjects: {answer.get('Errors')}")
            for name in deleted:
                self.model.pop(name, None)
            names = sorted(refused)
            if names:
                self.found.refused["keys of delete many"] += len(names)
                self._require(time.monotonic() - begun_s < REFUSED_S_MAX, f"{names} were refused for too long")
                time.sleep(RETRY_S)

    # --- reads ------------------------------------------------------------------------------------
    def get(self, name: str | None = None) -> None:
        """Read an object and its tags."""
        name = name or self._any_name()
        stored = self.model.get(name)
        found = self._read("get", "get_object", name)
        self._require(
            (found is None) == (stored is None), f"GET of {name} found {'nothing' if stored else 'an object'}"
        )
        if found is not None and stored is not None:
            self._require(found["Body"].read() == stored.data, f"GET of {name} found other bytes")
            self._require(found.get("TagCount", 0) == len(stored.tags), f"GET of {name} found other tags")
            if stored.tags:
                tags = self._ask("get tags", "get_object_tagging", Key=name)["TagSet"]
                self._require(tags == _tag_set(stored.tags), f"the tags of {name} are {tags}")

    def head(self) -> None:
        """Look an object up."""
        name = self._any_name()
        stored, found = self.model.get(name), self._read("head", "head_object", name)
        seen = None if found is None else (found["ETag"], found["ContentLength"])
        known = None if stored is None else (stored.etag, len(stored.data))
        self._require(seen == known, f"HEAD of {name} found {seen}, not {known}")

    def _read(self, kind: str, operation: str, name: str) -> Any:
        try:
            return self._ask(kind, operation, Key=name)
        except ClientError as error:
            if _code(error) in ("NoSuchKey", "404"):
                return None
            raise

    def list(self, prefix: str | None = None, page_size: int | None = None) -> None:
        """List the client's own names or the whole bucket, page by page."""
        prefix = self._random.choice(["", self._prefix]) if prefix is None else prefix
        page_size = page_size or self._random.choice(PAGE_SIZES if prefix else PAGE_SIZES[1:])
        listed: dict[str, tuple[str, int]] = {}
        names: list[str] = []
        more: dict[str, str] = {}
        while True:
            answer = self._ask("list", "list_objects_v2", Prefix=prefix, MaxKeys=page_size, **more)
            for one in answer.get("Contents", []):
                names.append(one["Key"])
                listed[one["Key"]] = one["ETag"], one["Size"]
            if not answer["IsTruncated"]:
                break
            more = {"ContinuationToken": answer["NextContinuationToken"]}
        if any(after <= before for before, after in pairwise(names)):
            raise Incomplete(f"a listing is not in order: {names}")
        if not prefix and (lost := set(STABLE) - listed.keys()):
            raise Incomplete(f"a listing lacks {sorted(lost)}")
        own = {name: seen for name, seen in listed.items() if name.startswith(self._prefix)}
        known = {name: (stored.etag, len(stored.data)) for name, stored in self.model.items()}
        if own != known:
            differing = sorted(name for name in own.keys() | known.keys() if own.get(name) != known.get(name))
            raise Incomplete(f"a listing differs in {[(name, own.get(name), known.get(name)) for name in differing]}")

    # --- calls ------------------------------------------------------------------------------------
    def _ask(self, kind: str, operation: str, **arguments: Any) -> Any:
        """Call the gateway, again and again while it answers with 503."""
        found, begun_s, was_refused = self.found, time.monotonic(), False
        while True:
            try:
                answer = getattr(self._s3, operation)(Bucket=MOVED, **arguments)
                break
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
                    raise
                found.refused[kind] += 1
                was_refused = True
                self._require(time.monotonic() - begun_s < REFUSED_S_MAX, f"{kind} was refused for too long: {error}")
                time.sleep(RETRY_S)
        took_s = time.monotonic() - begun_s
        found.calls[kind] += 1
        if kind in WRITES or kind in UPLOADS:
            found.writes_s.append(took_s)
            if was_refused:
                found.refused_s.append(took_s)
        else:
            found.reads_s.append(took_s)
        return answer

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise Wrong(problem)


class Uploader(Client):
    """Uploads objects in parts, reads and deletes them, and aborts some uploads."""

    def step(self) -> None:
        """See Client."""
        name, data = self._any_name(), self._random.randbytes(100_000)
        begun = self._ask("begin upload", "create_multipart_upload", Key=name)
        of = {"Key": name, "UploadId": begun["UploadId"]}
        part = self._ask("part", "upload_part", PartNumber=1, Body=data, **of)
        self._stop_event.wait(UPLOAD_PAUSE_S)
        stored = self._ask("list parts", "list_parts", **of).get("Parts", [])
        found = [(one["PartNumber"], one["ETag"], one["Size"]) for one in stored]
        self._require(found == [(1, part["ETag"], len(data))], f"upload of {name}: the parts are {found}")
        if self._random.random() < 0.3:
            self._abort(of)
        else:
            parts = [{"PartNumber": 1, "ETag": part["ETag"]}]
            done = self._ask("complete upload", "complete_multipart_upload", MultipartUpload={"Parts": parts}, **of)
            self.model[name] = Stored(data, composed=done["ETag"])
        if self._random.random() < 0.3:
            self.delete()
        self.head()
        self.list(self._prefix)
        self.get(name)

    def _abort(self, of: Mapping[str, str]) -> None:
        refused = self.found.refused["abort upload"]
        try:
            self._ask("abort upload", "abort_multipart_upload", **of)
        except ClientError as error:
            # Its first attempt may have been executed although it was answered with 503.
            if _code(error) != "NoSuchUpload" or self.found.refused["abort upload"] == refused:
                raise


def _code(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


def _tag_set(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def be_clients(asked: dict[str, Any]) -> int:
    """Be the clients until stdin is closed, and print what they have seen."""
    s3 = client_of(
        Access(asked["url"], asked["access_key"], asked["secret"]), max_pool_connections=asked["clients"] + 1
    )
    stop = threading.Event()
    clients = [Client(s3, f"client-{number}", stop, asked["pause_s"]) for number in range(asked["clients"])]
    clients.append(Uploader(s3, "uploader", stop))
    for client in clients:
        client.start()
    sys.stdin.read()
    stop.set()
    found = Found()
    for client in clients:
        client.join(STOP_S_MAX)
        found.add(client.found)
        if client.is_alive():
            found.wrong.append(f"{client.name} did not end")
    print(found.json(), flush=True)
    return 0


# --- the stack ------------------------------------------------------------------------------------
def command(config: Path, *arguments: str) -> tuple[int, str]:
    """Run a command of nos-ec. Returns its exit code and what it printed."""
    said = io.BytesIO()
    with io.TextIOWrapper(said, write_through=True) as text, redirect_stdout(text), redirect_stderr(text):
        code = run(["--config", str(config), *arguments])
        return code, said.getvalue().decode()


def be_keeper(config: str) -> int:
    """Pack and collect in all cells, one after the other, until stdin is closed. Print what failed."""
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    while not stop.wait(0.5):
        for cell in load_settings(Path(config), {}).cells:
            for what in (["producer", "--once"], ["consumer", "--once"], ["gc", "run", "--apply"]):
                code, said = command(Path(config), "--cell", cell, *what)
                if code != 0:
                    print(f"{' '.join(what)} in cell {cell} ended with {code}: {said[-500:]}", flush=True)
    return 0


@contextmanager
def started(role: str, asked: object) -> Iterator[subprocess.Popen[str]]:
    """Run this file as another process, which ends once its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, __file__, role, json.dumps(asked)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def settings_of(folder: Path, *, is_wide: bool) -> tuple[Settings, Path]:
    """The settings of a new store, and their file."""
    settings = new_cells(folder, **dict.fromkeys(CELLS_OF_WIDE if is_wide else CELLS, 1))
    config = folder / "cells.toml"
    config.write_text(f"{config.read_text()}\n[put]\nmin_age_ms = 0\n")
    with open_cells(settings, SystemClock()) as cells:
        for bucket in (MOVED, STILL):
            cells.claim(bucket, ROOT_ACCOUNT, CELLS[0], SLICES if is_wide and bucket == MOVED else ())
    return settings, config


# --- moving ---------------------------------------------------------------------------------------
class Mover:
    """Moves the bucket from cell to cell, or what a cell has of a wide one."""

    def __init__(self, config: Path, *, is_wide: bool = False) -> None:
        self._config = config
        self._is_wide = is_wide
        self._rounds = cycle(MOVES_OF_WIDE if is_wide else MOVES)
        self.moves_s: list[float] = []
        self.not_moved: Counter[str] = Counter()
        self.problems: list[str] = []

    def round(self) -> bool:
        """Move the bucket once, and prepare its way back. Returns whether that succeeded."""
        (here, there), code, said = next(self._rounds), 1, ""
        move, *after = commands_of_round(MOVED, here, there)
        if self._is_wide:
            move = (*move, "--from", here)
        for _ in range(TRIES_MAX):
            begun_s = time.monotonic()
            code, said = command(self._config, *move)
            if code == 0:
                break
            if _CHANGED_SAID not in said:
                break
            self.not_moved["too many changes"] += 1
            time.sleep(RETRY_S)
        if code != 0:
            return self._failed(f"cells move to {there}", said)
        self.moves_s.append(time.monotonic() - begun_s)
        for what in after:
            code, said = command(self._config, *what)
            if code != 0:
                return self._failed(" ".join(what), said)
        return True

    def _failed(self, what: str, said: str) -> bool:
        self.problems.append(f"{what} failed: {said[-1000:]}")
        return False


# --- the report -----------------------------------------------------------------------------------
def waits_text(times_s: Sequence[float]) -> str:
    """Return how many times there are, and their distribution."""
    if len(times_s) < 2:
        return f"{len(times_s)}"
    p50, p99 = (statistics.quantiles(times_s, n=100)[share - 1] for share in (50, 99))
    return f"{len(times_s)}, p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, longest {max(times_s):.2f} s"


def report(found: Found, mover: Mover) -> list[str]:
    """Print what was seen. Returns the problems."""
    print(f"moves: {waits_text(mover.moves_s)}; not moved because of {dict(mover.not_moved)}")
    print(f"calls: {dict(found.calls)}")
    print(f"answered with 503: {dict(found.refused)}")
    print(f"wrong answers: {len(found.wrong)}, incomplete listings: {len(found.incomplete)}")
    print(f"writes: {waits_text(found.writes_s)}")
    print(f"writes that were refused at first: {waits_text(found.refused_s)}")
    print(f"reads: {waits_text(found.reads_s)}")
    problems = [*mover.problems, *found.wrong, *found.incomplete]
    if not mover.moves_s:
        problems.append("the bucket was never moved, which proves nothing")
    problems += [
        f"there was no call of the kind {kind}" for kind in (*WRITES, *UPLOADS, "list") if not found.calls[kind]
    ]
    if (longest_s := max(found.writes_s, default=0.0)) > WRITE_S_MAX:
        problems.append(f"a write waited for {longest_s:.2f} s")
    return problems


def measure(folder: Path, options: argparse.Namespace) -> list[str]:
    """Run everything in a folder. Returns the problems."""
    settings, config = settings_of(folder, is_wide=options.wide)
    mover = Mover(config, is_wide=options.wide)
    (folder / "gateway").mkdir(mode=0o700)
    with ExitStack() as opened:
        server = opened.enter_context(gateways(settings, folder / "gateway", 1))
        access = Access(server.urls[0], server.credentials.access_key, server.credentials.secret)
        s3 = client_of(access)
        for bucket in (MOVED, STILL):
            s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=STILL, Key=SOURCE, Body=SOURCE_DATA)
        for name in STABLE:
            s3.put_object(Bucket=MOVED, Key=name, Body=name.encode())
        asked = {**asdict(access), "clients": options.clients, "pause_s": options.pause}
        keeper = opened.enter_context(started("--keeper", str(config)))
        clients = opened.enter_context(started("--be", asked))
        end_s = time.monotonic() + options.minutes * 60
        while time.monotonic() < end_s and clients.poll() is None and mover.round():
            pass
        said, _ = clients.communicate(timeout=2 * STOP_S_MAX)
        kept, _ = keeper.communicate(timeout=STOP_S_MAX)
    if clients.returncode != 0:
        return [*mover.problems, f"the clients ended with {clients.returncode}"]
    problems = report(Found.of_json(said), mover)
    problems += kept.splitlines()
    code, text = command(config, "check")
    return problems if code == 0 else [*problems, f"nos-ec check ended with {code}: {text[-2000:]}"]


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="how long the bucket is moved (default 20)")
    parser.add_argument("--clients", type=int, default=3, help="how many besides the one with uploads (default 3)")
    parser.add_argument(
        "--pause", type=float, default=0.01, help="seconds between two calls of a client (default 0.01)"
    )
    parser.add_argument("--wide", action="store_true", help="move what cells have of a wide bucket")
    parser.add_argument("--be", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--keeper", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.be:
        return be_clients(options.be)
    if options.keeper:
        return be_keeper(options.keeper)
    if options.clients < 1 or options.minutes <= 0 or options.pause < 0:
        parser.error("use at least one client, a time above 0, and no negative pause")
    with tempfile.TemporaryDirectory(prefix="nos-ec-cell-moves-") as folder:
        problems = measure(Path(folder), options)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
