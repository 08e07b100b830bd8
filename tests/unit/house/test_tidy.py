"""House rules that no linter checks. Every exception is listed here, with its reason."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nos_ec.settings.sections import Settings, fields_of
from tests.rig.programs import ON_EVERY_MACHINE, PACKAGE_OF
from tests.rig.runbook import sections
from tests.rig.started_programs import functions_of, started_by_python, started_by_shell

ROOT = Path(__file__).parents[3]
PACKAGES = ("nos_ec", "producer", "consumer", "gc")
FOLDERS = (*PACKAGES, "tests", "docs", "deploy", "requirements", ".ci")
BINARY_SUFFIXES = {".bin", ".pyc", ".png", ".gz"}

WORLD = re.compile(
    r"time\.(time|time_ns|sleep|monotonic|monotonic_ns)|datetime\.(datetime|date)\.(now|utcnow|today)"
    r"|os\.(urandom|environ|getenv)|uuid\.uuid\d|secrets\.\w+|random\.(?!Random$)\w+"
)
"""Time, randomness and the environment are passed in, so that a test decides what they are."""

MAY_ASK_THE_WORLD = {
    "nos_ec/adapters/": "adapters are where the world begins",
    "nos_ec/composition/adapters.py": "makes the ids and names that everybody else is given",
    "nos_ec/cli/": "the process itself: its environment, its waiting",
    "nos_ec/demo/": "a command",
    "nos_ec/bench/": "measures time and CPU time",
    "nos_ec/composition/scratch.py": "makes names that were never used before",
    "nos_ec/composition/developer_values.py": "tests shorten waits in the daemons that they start",
    "nos_ec/core/killpoints.py": "reads one variable at import, to die in a crash test",
}
MAY_PRINT = {
    "nos_ec/cli/": "talks to people",
    "nos_ec/demo/": "talks to people",
}

MEANINGLESS_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}

# Written in pieces, or this file would break its own rules.
FORBIDDEN_TEXT = re.compile(
    "|".join(
        [
            r"py" + r"pi\.org",
            r"python" + r"hosted",
            r"index" + r"-url",
            r"(?<![\w.])/(work|root|home)/\w",
            r"/tmp/" + r"venv",
            r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
        ]
    )
)
MAY_SAY = {
    ("Makefile", "index" + "-url"): "the option that keeps addresses out of the compiled files",
}


def files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in BINARY_SUFFIXES:
                yield path


def modules(*folders: str) -> list[Path]:
    found = [path for path in files(*folders) if path.suffix == ".py"]
    assert found, f"no modules in {folders}: the check would pass for nothing"
    return found


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def excepted(path: Path, exceptions: dict[str, str]) -> bool:
    return any(name_of(path).startswith(prefix) for prefix in exceptions)


def names_used(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a module refers to, with `import x as y` and `from x import y` seen through."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in imported:
                _, dot, rest = ast.unparse(node).partition(".")
                yield node.lineno, imported[root.id] + dot + rest


def offences(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    if not excepted(path, MAY_ASK_THE_WORLD):
        for line, name in names_used(tree):
            if WORLD.fullmatch(name):
                yield f"{name_of(path)}:{line}: {name}"
    if not excepted(path, MAY_PRINT):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in ("print", "input"):
                yield f"{name_of(path)}:{node.lineno}: {node.id}"


DELETION = re.compile(r"\b_?(blocks|landing|store)\.delete(_many)?\(|\b_?medium\.release\(")
DELETES_UNRECORDED = {
    "nos_ec/engine/dump/stored.py": "deletes an object, as users do; GC records its blocks",
    "nos_ec/engine/landing/layered_landing.py": "is a landing store itself: its callers record",
    "nos_ec/engine/landing/segment_maker.py": "gives back a segment to which nothing was ever written",
}


def test_what_deletes_data_records_it_in_the_audit_trail() -> None:
    """Code that deletes elsewhere has to record it there."""
    found = {name_of(path): path.read_text() for path in modules("nos_ec/engine")}
    deleting = {name for name, text in found.items() if DELETION.search(text)}
    assert len(deleting) > 6
    assert {name for name in deleting if "trail.record(" not in found[name]} == set(DELETES_UNRECORDED)


def states_written(tree: ast.Module) -> Iterator[int]:
    """Lines with `state=...` or `"state": ...` whose value names a state, except in a comparison or a call of
    `advance_object` or `advance_block`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and (node.arg or "").startswith("state"):
            yield from states_named(node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and str(key.value).startswith("state"):
                    yield from states_named(value)


def states_named(node: ast.AST) -> Iterator[int]:
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("ObjectState", "BlockState"):
        yield node.lineno
    is_advance = isinstance(node, ast.Call) and ast.unparse(node.func) in ("advance_object", "advance_block")
    if not is_advance and not isinstance(node, ast.Compare):
        for child in ast.iter_child_nodes(node):
            yield from states_named(child)


def test_states_are_written_only_as_the_lifecycle_advances_them() -> None:
    assert [
        f"{name_of(path)}:{n}" for path in modules(*PACKAGES) for n in states_written(ast.parse(path.read_text()))
    ] == []


@pytest.mark.parametrize(
    ("source", "offends"),
    [
        ("row(state=ObjectState.LANDED)", True),
        ("values = {'state_after': BlockState.OPEN if full else BlockState.SEALED}", True),
        ("update.values(state=case((C.state == BlockState.OPEN, BlockState.FENCED), else_=C.state))", True),
        ("values = {'state': advance_block(BlockState.OPEN, BlockEvent.SEAL)}", False),
        ("update.values(state=case((C.state == BlockState.OPEN, FENCED), else_=C.state))", False),
        ("select(C.state == BlockState.OPEN)", False),
    ],
)
def test_the_check_finds_states_that_are_written(source: str, offends: bool) -> None:
    assert any(states_written(ast.parse(source))) is offends


def test_time_chance_and_environment_are_passed_in() -> None:
    assert [offence for path in modules(*PACKAGES) for offence in offences(path)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nwait = t.sleep",
        "from time import sleep\nsleep(1)",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime as d\nd.now()",
        "import os\nos.urandom(4)",
        "from uuid import uuid4\nuuid4()",
        "import random\nrandom.random()",
        "from random import choice\nchoice([1])",
    ],
)
def test_the_check_sees_through_imports(source: str) -> None:
    assert any(WORLD.fullmatch(name) for _, name in names_used(ast.parse(source)))


@pytest.mark.parametrize("source", ["import random\nrandom.Random(3)", "import time\ntime.perf_counter()", "now.time"])
def test_the_check_lets_pass_what_is_fine(source: str) -> None:
    assert not any(WORLD.fullmatch(name) for _, name in names_used(ast.parse(source)))


@pytest.mark.parametrize("exceptions", [MAY_ASK_THE_WORLD, MAY_PRINT])
def test_no_exception_outlives_its_reason(exceptions: dict[str, str]) -> None:
    assert [prefix for prefix in exceptions if not (ROOT / prefix).exists()] == []


def test_services_hold_one_package_each() -> None:
    """`gc` is a built-in module of Python: a module next to the package would invite imports from it."""
    for folder in ("producer", "consumer", "gc"):
        assert [name_of(path) for path in (ROOT / folder).glob("*.py")] == []
        assert [p.name for p in (ROOT / folder).iterdir() if p.is_dir() and (p / "__init__.py").exists()] == [
            f"nos_{folder}"
        ]


def test_every_package_has_its_layer() -> None:
    """It is in the contracts of import-linter, and in the list in ARCHITECTURE.md."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = {name.strip() for layer in settings["contracts"][0]["layers"] for name in layer.split("|")}
    architecture = (ROOT / "docs/ARCHITECTURE.md").read_text()
    packages = {path.name for path in (ROOT / "nos_ec").iterdir() if (path / "__init__.py").exists()}
    assert {f"nos_ec.{name}" for name in packages} == {name for name in layers if "." in name}
    assert [name for name in packages if f"\nnos_ec/{name}/ " not in architecture] == []


def test_every_invariant_has_a_test() -> None:
    """INVARIANTS.md numbers them from 1."""
    numbered = {int(n) for n in re.findall(r"^(\d+)\. \*\*", (ROOT / "docs/INVARIANTS.md").read_text(), re.MULTILINE)}
    marked = {
        int(number)
        for path in modules("tests")
        for numbers in re.findall(r"mark\.invariant\(([\d, ]+)\)", path.read_text())
        for number in numbers.split(",")
    }
    assert numbered == set(range(1, 13))
    assert marked == numbered


def test_modules_that_pages_name_exist() -> None:
    """Records of decisions name what there was when they were written."""
    there = [
        f"/{path.relative_to(ROOT)}" for path in files(*PACKAGES, "tests", "docs", "deploy") if path.suffix == ".py"
    ]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "deploy/README.md"]
    named = {(page.name, name) for page in pages for name in re.findall(r"`([\w.]+/[\w./]+\.py)`", page.read_text())}
    assert len(named) > 100
    assert [pair for pair in sorted(named) if not any(f"/{path}".endswith(f"/{pair[1]}") for path in there)] == []


def test_modules_are_named_for_what_they_hold() -> None:
    assert [name_of(path) for path in modules(*PACKAGES, "tests") if path.stem in MEANINGLESS_NAMES] == []


def test_packages_stay_readable() -> None:
    """A package has at most 20 modules, and says in its `__init__` what lives there."""
    packages = {path.parent for path in modules("nos_ec") if path.name == "__init__.py"}
    assert [name_of(package) for package in packages if len(list(package.glob("*.py"))) > 21] == []
    assert {path.parent for path in modules("nos_ec")} == packages


def test_settings_stay_few() -> None:
    """Each is a question to every operator. A new one takes the place of another, or this number is raised because
    there is a value that only an operator can judge.

    gc.workers depends on the hosts and on the time of day that GC may use. The console has 7 on top of these 96: where
    it listens (2), its token, the names of its TLS proxies, where Prometheus is, whether operators may change anything,
    and who they are, which only an operator knows. Whether everything is encrypted (s3.encrypt) is one more,
    and so is the cell of the directory (store.directory), which must not change with the order of cells in a file.
    So are the topics that buckets may use (s3.notification_topics), and how much of a database their events may fill.
    Whether usage is counted (store.count_usage) decides what each change costs.
    Whether a journal of deletes is kept, and how much of a database it may fill (store.journal_rows_max), is one more.
    Three more say where a key service is (s3.kms_*), as whom the store speaks to it, and how it is verified.
    Another one names the domains of websites (s3.website_domains), which the operator enters into the DNS.
    Another one names the buckets that metrics always show (producer.shown_buckets).
    """
    count = sum(len(fields_of(section)) for section in Settings.model_fields)
    assert len(fields_of("console")) == 7
    assert count <= 96 + 7 + 4 + 3 + 3 + 1


def test_everything_public_says_what_it_is() -> None:
    missing = []
    for path in modules(*PACKAGES):
        tree = ast.parse(path.read_text())
        if ast.get_docstring(tree) is None:
            missing.append(name_of(path))
        named = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        missing += [
            f"{name_of(path)}:{node.lineno}: {node.name}"
            for node in named
            if not node.name.startswith("_") and ast.get_docstring(node) is None
        ]
    assert missing == []


def test_no_addresses_machine_paths_or_notes_to_self() -> None:
    top = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    found = []
    for path in [*top, *files(*FOLDERS)]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = FORBIDDEN_TEXT.search(line)
            if match and not any(name_of(path) == name and text in match[0] for name, text in MAY_SAY):
                found.append(f"{name_of(path)}:{number}: {match[0]}")
    assert found == []


@pytest.mark.parametrize(
    "text", ["x = '/ro" + "ot/x'", "https://py" + "pi.org/simple", "# TO" + "DO: later", "/wo" + "rk/main"]
)
def test_the_check_finds_what_it_looks_for(text: str) -> None:
    assert FORBIDDEN_TEXT.search(text)


def requirement_names(text: str) -> set[str]:
    return {
        re.split(r"[=<>~!\[ ;]", line, maxsplit=1)[0].lower().replace("_", "-") for line in text.splitlines() if line
    }


def pins(name: str) -> dict[str, int]:
    """{package: number of hashes} of a compiled requirements file."""
    pinned: dict[str, int] = {}
    current = ""
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if match := re.match(r"([a-z0-9-]+)==", line):
            current = match[1]
            pinned[current] = 0
        elif "--hash=sha256:" in line:
            pinned[current] += 1
    return pinned


MAY_START = {
    "debootstrap": {"deploy/dev/base.sh": "fresh.sh and ceph_programs.sh install it first"},
    "go": {"deploy/dev/vitess.sh": "only where it is; otherwise that of requirements/clients.txt"},
    "java": {"deploy/dev/kafka.sh": "its need_program"},
    "mvn": {"deploy/dev/base.sh": "need_program of kafka.sh and mysql.sh"},
    "openssl": {"deploy/dev/openbao.sh": "its need_program"},
    "psql": {"deploy/dev/s3_clients.sh": "its need_postgres"},
    "unzip": {"deploy/dev/mysql.sh": "its need_program"},
    "mariadb-install-db": {"deploy/dev/mariadb.sh": "its need_program"},
    "keytool": {
        "tests/real/kafka/test_kafka_security.py": "comes with Java, which kafka.sh has installed for the broker"
    },
    "sudo": {"deploy/dev/base.sh": "says that it is missing, or what could not be installed"},
    "man": {"tests/fresh_package.sh": "installs it first"},
    "nos-ec": {"tests/fresh_package.sh": "installs it first"},
    "nos-ec-as": {"tests/fresh_package.sh": "installs it first"},
    "systemctl": {
        "deploy/debian/postinst": "only where systemd runs",
        "deploy/debian/postrm": "only where systemd runs",
        "deploy/debian/prerm": "only where systemd runs",
    },
    "mariadb": {"tests/deploy_machine.py": "`make up` has installed it"},
    "systemd-analyze": {"tests/deploy_machine.py": "installs it first"},
}
"""{program that not every machine has: {file that starts it anyway: how it is made available}}."""


def scripts() -> list[Path]:
    found = [path for path in files("deploy", "tests", ".ci") if path.suffix in ("", ".sh")]
    return [path for path in found if path.suffix or path.read_bytes().startswith(b"#!")]


def recipes() -> str:
    """Return the commands of the Makefile."""
    lines = [
        re.sub("^\t[@-]?", "", line) for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("\t")
    ]
    return re.sub(r"\$\(\w[^()]*(\(.*?\))?[^()]*\)", "%", "\n".join(lines)).replace("$$", "$")


def programs_started() -> Iterator[tuple[str, str]]:
    """Yield (file, program) for everything that tests and scripts start, except functions of the scripts."""
    texts = {path: path.read_text() for path in scripts()}
    functions = {name for text in texts.values() for name in functions_of(text)}
    for path, text in texts.items():
        yield from ((name_of(path), program) for program in started_by_shell(text) - functions)
    for path in modules("tests"):
        programs = {Path(program).name for _, program in started_by_python(path.read_text())} - functions
        yield from ((name_of(path), program) for program in programs)
    yield from (("Makefile", program) for program in started_by_shell(recipes()))


def test_tests_and_scripts_start_only_programs_that_every_machine_has_or_that_they_install() -> None:
    """A typical machine has many more. Tests ask `need_program` for them, and scripts have a `need_program` of their
    own."""
    started = set(programs_started())
    assert len(started) > 150
    foreign = {(name, program) for name, program in started if program not in ON_EVERY_MACHINE}
    assert foreign == {(name, program) for program, names in MAY_START.items() for name in names}


def test_runbooks_use_only_programs_that_are_installed_for_them() -> None:
    shipped = {path.name for path in (ROOT / "tests" / "rig" / "bin").iterdir()} | {"nos-ec"}
    of_kafka = set(re.findall(r"^(kafka-[\w-]+) ", (ROOT / "deploy" / "dev" / "kafka.sh").read_text(), re.MULTILINE))
    of_mariadb = set(re.findall(r"\bmariadb[\w-]*", (ROOT / "deploy" / "dev" / "mariadb.sh").read_text()))
    for where, more in {"embedded": set[str](), "stack": of_kafka | of_mariadb}.items():
        commands = "\n".join(text for texts in sections(where).values() for text in texts)
        started = started_by_shell(commands)
        assert len(started) > 5
        assert started - ON_EVERY_MACHINE - PACKAGE_OF.keys() - shipped - more == set()


def test_tests_look_for_programs_only_by_need_program() -> None:
    """`shutil.which` silently skips a test where a program is missing."""
    looking = [name_of(path) for path in modules("tests") if "shutil." + "which(" in path.read_text()]
    assert looking == ["tests/rig/programs.py", "tests/unit/house/test_dev_scripts.py"]


@pytest.mark.parametrize(
    ("shell", "started"),
    [
        ("pgrep -f x", {"pgrep"}),
        ("if ! ss -l | jq .; then curl x; fi", {"ss", "jq", "curl"}),
        ('x=$(hostname); y="$(whoami) and $(uptime) $(id -n "some one")"', {"hostname", "whoami", "uptime", "id"}),
        ("NAME=1 exec strace x 2>&1 >/dev/null && (cd x; git status) &", {"strace", "git"}),
        ("f() { lsof; }\nf", {"lsof"}),
        ("case $x in a | b) ps ;;\n    c) echo 'nc; nc' \"nc; nc\" ;; esac # nc", {"ps"}),
        ("cat <<END | less\nnc\nEND", {"cat", "less"}),
        ("some \\\n    arguments; (( x = 1 )); list=(a b); for word in a b; do :; done", {"some"}),
    ],
)
def test_the_check_finds_the_programs_of_a_script(shell: str, started: set[str]) -> None:
    assert started_by_shell(shell) == started


@pytest.mark.parametrize(
    ("source", "started"),
    [
        ("subprocess.run(['ps', '-o', 'pid='], check=True)", ["ps"]),
        ("command = ['ps', *more]\nsubprocess.Popen(command)", ["ps"]),
        ("subprocess.run([*command, 'x'])\ncommand = ['ps']", ["ps"]),
        ("script = f'ps {x}; free'\nsubprocess.run(['bash', '-e', '-c', script])", ["bash", "free", "ps"]),
        ("subprocess.run([sys.executable, '-c', 'ps'])\nsubprocess.run(command)\nrun(['ps'])", []),
    ],
)
def test_the_check_finds_the_programs_of_a_test(source: str, started: list[str]) -> None:
    assert sorted(program for _, program in started_by_python(source)) == started


def test_requirements_are_compiled_and_hashed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime, dev, clients = pins("runtime.txt"), pins("dev.txt"), pins("clients.txt")
    assert not [name for pinned in (runtime, dev, clients) for name, hashes in pinned.items() if not hashes]
    wanted = requirement_names("\n".join(project["project"]["dependencies"]))
    assert wanted <= runtime.keys(), "run `make requirements`"
    wanted |= requirement_names("\n".join(project["project"]["optional-dependencies"]["dev"]))
    wanted |= requirement_names("\n".join(project["build-system"]["requires"]))
    assert wanted <= dev.keys(), "run `make requirements`"
    assert runtime.keys() <= dev.keys()
    wanted = requirement_names(re.sub(r"#.*", "", (ROOT / "requirements" / "clients.in").read_text()))
    assert wanted <= clients.keys(), "run `make requirements`"
    assert "awscrt" not in clients, "botocore would sign with it"


def test_pre_commit_runs_the_checks_of_make_lint() -> None:
    makefile, hooks = (ROOT / "Makefile").read_text(), (ROOT / ".pre-commit-config.yaml").read_text()
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.M)
    scripts = re.search(r"^SCRIPTS := (\S+) .* (deploy/nos-ec-as .*) \| sort -u\)$", makefile, re.M)
    assert recipe
    assert scripts
    checks = re.findall(r"\$\(BIN\)/([\w-]+)", recipe[1])
    assert len(checks) == 5
    assert [check for check in checks if f".venv/bin/{check} " not in hooks.replace("\n", " \n")] == []
    assert all(part in hooks for part in scripts.groups())
