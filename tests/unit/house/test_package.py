"""What `import nos_ec` offers, and the example of the README that uses it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from zipfile import ZipFile

import pytest

import nos_ec

ROOT = Path(__file__).parents[3]


def test_every_name_that_is_exported_is_there() -> None:
    for name in nos_ec.__all__:
        found = getattr(nos_ec, name)
        assert found.__name__ == name
        assert found.__module__.startswith("nos_ec.")


SIGNATURES = {
    "open_store": "(where: 'Settings | str | os.PathLike[str]', *, create: 'bool' = False) -> 'ObjectStore'",
    "pack_request_schema": "(version: 'int') -> 'dict[str, Any]'",
    "load_settings": "(path: 'Path | None', env: 'Mapping[str, str]') -> 'Settings'",
    "initialise": "(settings: 'Settings', new_shards: 'Collection[int]' = (), new_devices: 'Collection[int]' = ())"
    " -> 'None'",
    "open_system": "(settings: 'Settings') -> 'System'",
    "ObjectKey": "(bucket: 'str', name: 'str') -> None",
    "ObjectStore": "(system: 'System | Cells') -> 'None'",
    "ObjectStore.put": "(self, key: 'ObjectKey | str', data: 'Buffer | Readable | Iterable[Buffer]',"
    " size: 'int | None' = None, attributes: 'Mapping[str, str] | None' = None, *, if_absent: 'bool' = False,"
    " if_match: 'bytes | ObjectInfo | None' = None) -> 'ObjectInfo'",
    "ObjectStore.put_many": "(self, objects: 'Sequence[tuple[ObjectKey | str, bytes]]') -> 'Sequence[ObjectInfo]'",
    "ObjectStore.get": "(self, key: 'ObjectKey | str | ObjectInfo', start: 'int' = 0, length: 'int | None' = None)"
    " -> 'bytes'",
    "ObjectStore.open_read": "(self, key: 'ObjectKey | str | ObjectInfo') -> 'ObjectReader'",
    "ObjectStore.head": "(self, key: 'ObjectKey | str') -> 'ObjectInfo'",
    "ObjectStore.list": "(self, bucket: 'str', prefix: 'str' = '', *, after: 'str' = '') -> 'Iterator[ObjectInfo]'",
    "ObjectStore.list_folder": "(self, bucket: 'str', prefix: 'str' = '', delimiter: 'str' = '/', *,"
    " after: 'str' = '') -> 'Iterator[ObjectInfo | str]'",
    "ObjectStore.buckets": "(self) -> 'Iterator[str]'",
    "ObjectStore.set_attributes": "(self, key: 'ObjectKey | str', attributes: 'Mapping[str, str]') -> 'ObjectInfo'",
    "ObjectStore.delete": "(self, key: 'ObjectKey | str', *, if_match: 'bytes | ObjectInfo | None' = None)"
    " -> 'ObjectInfo'",
    "ObjectStore.delete_many": "(self, keys: 'Iterable[ObjectKey | str]') -> 'Sequence[ObjectInfo]'",
    "ObjectStore.register": "(self, registry: 'CollectorRegistry') -> 'None'",
    "ObjectStore.close": "(self) -> 'None'",
    "ObjectReader.read": "(self, size: 'int | None' = -1, /) -> 'bytes'",
    "ObjectReader.read1": "(self, size: 'int' = -1, /) -> 'bytes'",
    "ObjectReader.peek": "(self, size: 'int' = 0, /) -> 'bytes'",
    "ObjectReader.seek": "(self, offset: 'int', whence: 'int' = 0, /) -> 'int'",
    "ObjectReader.tell": "(self) -> 'int'",
}
"""What programs call. A change here breaks them, so it needs a new major version, or a default."""
FIELDS = ("key", "version", "size", "crc32c", "md5", "state", "created_ms")


def test_the_public_signatures_are_these() -> None:
    for name, signature in SIGNATURES.items():
        assert str(inspect.signature(attrgetter(name)(nos_ec))) == signature, name
    public = {name for name in vars(nos_ec.ObjectStore) if not name.startswith("_")}
    pinned = {name.partition(".")[2] for name in SIGNATURES if name.startswith("ObjectStore.")}
    assert public == pinned | {"small_bytes_max"}
    assert tuple(field.name for field in fields(nos_ec.ObjectInfo))[: len(FIELDS)] == FIELDS


def test_errors_say_by_their_class_whether_to_try_again() -> None:
    errors = {name for name in nos_ec.__all__ if isinstance(getattr(nos_ec, name), type)}
    errors = {name for name in errors if issubclass(getattr(nos_ec, name), Exception)}
    assert {name for name in errors if issubclass(getattr(nos_ec, name), nos_ec.Transient)} == {"Transient", "NoSpace"}
    assert {name for name in errors if issubclass(getattr(nos_ec, name), nos_ec.Conflict)} == {"Conflict", "LeaseLost"}
    table = re.findall(r"^\| `(\w+)`", (ROOT / "docs/PYTHON.md").read_text(), re.MULTILINE)
    assert set(table) == errors - {"NosError"}


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = nos_ec.nothing


def test_importing_the_package_loads_no_adapter() -> None:
    code = "import sys, nos_ec; print([name for name in sys.modules if name.startswith('nos_ec.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sources as they are."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_what_is_no_module(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    for folder in ("nos_ec", "producer/nos_producer", "consumer/nos_consumer", "gc/nos_gc"):
        package = ROOT / folder
        found = {path.relative_to(package.parent).as_posix() for path in package.rglob("*") if path.is_file()}
        wanted = {name for name in found if not name.endswith((".py", ".pyc"))}
        assert f"{package.name}/py.typed" in wanted
        assert wanted <= names


def test_the_wheel_gives_its_schemas(wheel: Path) -> None:
    code = "import nos_ec; print(nos_ec.__file__); print(nos_ec.pack_request_schema(2)['properties']['v']['const'])"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=wheel.parent)
    assert done.stdout.splitlines() == [str(wheel / "nos_ec/__init__.py"), "2"]


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [line.partition("# ")[2] for line in example.splitlines() if line.lstrip().startswith("print(")]
    assert printed == done.stdout.splitlines()
    assert (tmp_path / "photos-store").is_dir()
