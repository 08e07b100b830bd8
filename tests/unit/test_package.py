"""What `import nos_ec` offers, and the example of the README that uses it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import nos_ec

ROOT = Path(__file__).parents[2]


def test_every_name_that_is_exported_is_there() -> None:
    for name in nos_ec.__all__:
        found = getattr(nos_ec, name)
        assert found.__name__ == name
        assert found.__module__.startswith("nos_ec.")


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
