"""Settings: every wrong key and value is named with its place; the reference is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from nos_ec.composition.operator_side import stall_ms_max
from nos_ec.composition.packing import collector_options
from nos_ec.core.errors import ConfigError
from nos_ec.core.geometry import (
    BLOCK_SIZE_MAX,
    CHUNK_SIZE_MAX,
    CHUNK_SIZE_MIN,
    K_MAX,
    M_MAX,
    STRIPES_PER_BLOCK_MAX,
    Geometry,
)
from nos_ec.settings import Settings, check_settings, load_settings, require_root, without_settings, write_settings
from nos_ec.settings.checks import UTF8_ADVICE
from nos_ec.settings.reference import reference
from nos_ec.settings.retired import RETIRED
from nos_ec.settings.sections import GeometrySettings, fields_of

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nos-ec.toml"


def test_everything_has_a_default() -> None:
    settings = load_settings(None, {})
    assert settings == Settings()
    assert settings.geometry.value() == Geometry()
    assert check_settings(None, {}) == []


def test_an_empty_file_is_valid(file: Path) -> None:
    file.write_text("")
    assert load_settings(file, {}) == Settings()


@pytest.mark.parametrize(
    "line",
    [
        'consumer.lanes = "10"',
        "consumer.lanes = 2.0",
        "consumer.lanes = true",
        'gc.hole_ratio_min = "0.5"',
        "gc.hole_ratio_min = true",
        "gc.hole_ratio_min = nan",
        'gc.reserve_bytes = "1073741824"',
        "gc.reserve_bytes = 1073741824.0",
        "gc.reserve_bytes = true",
        'api.anonymous = "true"',
        "api.anonymous = 1",
        "consumer.group = 5",
        "consumer.policy = 1",
        "store.root = 5",
        "kafka.servers = 9092",
        "store.metadata_url = 5",
        "kafka.options = 5",
    ],
)
def test_a_value_of_another_type_is_refused(file: Path, line: str) -> None:
    file.write_text(line)
    (problem,) = check_settings(file, {})
    setting = line.partition(" ")[0]
    assert problem.setting == setting
    assert problem.text.startswith(f"{file}: {setting}: ")
    assert "; use " in problem.text


@pytest.mark.parametrize(
    ("servers", "wrong"),
    [
        ("kafka-1:9092, kafka-2:9092", None),
        ("[2001:db8::1]:9092,SSL://10.0.0.1:9093", None),
        ("kafka-1", "kafka-1"),
        ("kafka-1:9092,kafka-2", "kafka-2"),
        ("kafka-1:9092,", ""),
        ("kafka-1:port", "kafka-1:port"),
        ("2001:db8::1", "2001:db8::1"),
    ],
)
def test_brokers_need_a_port(servers: str, wrong: str | None) -> None:
    """librdkafka would take 9092, and the operator would look for the broker elsewhere."""
    found = [problem.text for problem in check_settings(None, {"NOS_EC_KAFKA__SERVERS": servers})]
    advice = f"environment variable NOS_EC_KAFKA__SERVERS: {wrong!r} is not host:port; give each broker with its port"
    assert found == ([] if wrong is None else [advice])


@pytest.mark.parametrize(
    ("url", "is_right"),
    [
        ("http://127.0.0.1:9090", True),
        ("https://[2001:db8::1]:9090/prometheus/", True),
        ("http://prometheus", True),
        ("127.0.0.1:9090", False),
        ("ftp://prometheus", False),
        ("http://:9090", False),
        ("http://prometheus:port", False),
        ("http://ann:secret@prometheus", False),
        ("http://prometheus/?a=1", False),
        ("http://prometheus\r\nX: 1", False),
    ],
)
def test_the_url_of_prometheus_has_a_host_and_no_password(url: str, is_right: bool) -> None:
    found = check_settings(None, {"NOS_EC_CONSOLE__PROMETHEUS_URL": url})
    assert [problem.setting for problem in found] == ([] if is_right else ["console.prometheus_url"])
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [("10", 10), ("+10", 10), ("1_0", None), ("10.0", None), (" 10", None), ("true", None), ("", None), ("٣", None)],
)
def test_whole_numbers_in_the_environment(text: str, found: int | None) -> None:
    env = {"NOS_EC_CONSUMER__LANES": text}
    if found is None:
        (problem,) = check_settings(None, env)
        assert f"NOS_EC_CONSUMER__LANES: {text!r} is not allowed; use a whole number" in problem.text
    else:
        assert load_settings(None, env).consumer.lanes == found


@pytest.mark.parametrize(
    ("text", "found"), [("0.5", 0.5), ("1", 1.0), (".5", 0.5), ("5e-1", 0.5), ("0_5", None), ("nan", None), ("", None)]
)
def test_numbers_in_the_environment(text: str, found: float | None) -> None:
    env = {"NOS_EC_GC__HOLE_RATIO_MIN": text}
    if found is None:
        (problem,) = check_settings(None, env)
        assert f"NOS_EC_GC__HOLE_RATIO_MIN: {text!r} is not allowed; use a number" in problem.text
    else:
        assert load_settings(None, env).gc.hole_ratio_min == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[store]\nmetadata_url = "mysql://u:hunter2@a/b"\nmetadata_url = "mysql://u:hunter2@c/d"\n', "metadata_url"),
        ("[consumer]\nlanes = 1\n[consumer]\nlanes = 2\n", "[consumer]"),
        ("consumer.lanes = 1\n[consumer]\nlanes = 2\n", "[consumer]"),
    ],
)
def test_what_is_given_twice_in_a_file_is_named(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    (problem,) = check_settings(file, {})
    assert problem.text.startswith(f"{file}: not valid TOML: ")
    assert "line 3" in problem.text or "line 2" in problem.text
    assert problem.text.endswith(f": {says}")
    assert "hunter2" not in problem.text


def test_a_key_of_a_table_that_is_given_twice_is_refused(file: Path) -> None:
    file.write_text('[kafka.options]\n"linger.ms" = 5\nlinger.ms = 7\n')
    (problem,) = check_settings(file, {})
    assert problem.setting == "kafka.options"
    (problem,) = check_settings(None, {"NOS_EC_KAFKA__OPTIONS": '{"linger.ms": 5, "linger.ms": 7}'})
    assert problem.setting == "kafka.options"


def test_a_section_that_is_no_table_does_not_show_what_may_be_a_secret(file: Path) -> None:
    for text in ("store = 'mysql://u:hunter2@h/x'\n", "[[store]]\nmetadata_url = 'mysql://u:hunter2@h/x'\n"):
        file.write_text(text)
        (problem,) = check_settings(file, {})
        assert problem.text == f"{file}: store: store is a section; write [store] and its keys below"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://u:hunter2@h/db", "postgresql:// is not supported"),
        ("oracle+oracledb://u:hunter2@h/db", "oracle+oracledb:// is not supported"),
        ("mysql+mysqldb://u:hunter2@h/db", "the driver of mysql+mysqldb:// is not supported"),
        ("u:hunter2@h/db", "this is not a database URL"),
        ("hunter2 :// h", "this is not a database URL"),
        ("", "this is not a database URL"),
    ],
)
def test_a_database_that_is_not_supported_is_refused(file: Path, url: str, says: str) -> None:
    file.write_text(f'[store]\nmetadata_url = "{url}"\n')
    (problem,) = check_settings(file, {})
    assert problem.text.startswith(f"{file}: store.metadata_url: {says}; use sqlite:////")
    assert "mysql+pymysql://user" in problem.text
    assert "hunter2" not in problem.text
    env = {"NOS_EC_STORE__METADATA_URL": url}
    with pytest.raises(ConfigError, match="environment variable NOS_EC_STORE__METADATA_URL: ") as error:
        load_settings(None, env)
    assert error.value.settings == ("store.metadata_url",)


@pytest.mark.parametrize(
    "scheme", ["sqlite", "sqlite+pysqlite", "mysql", "mysql+pymysql", "mariadb", "mariadb+pymysql"]
)
def test_supported_databases(scheme: str) -> None:
    assert check_settings(None, {"NOS_EC_STORE__METADATA_URL": f"{scheme}://u:p@h/db"}) == []


def test_a_reserve_that_holds_no_block_is_refused(file: Path) -> None:
    file.write_text('[gc]\nreserve_bytes = "31MiB"\n')
    (problem,) = check_settings(file, {})
    assert problem.text.startswith(f"{file}: gc.reserve_bytes: {31 << 20} is less than a block")
    assert f"use at least {32 << 20}" in problem.text
    for allowed in ("0", '"32MiB"'):
        file.write_text(f"[gc]\nreserve_bytes = {allowed}\n")
        assert check_settings(file, {}) == []
    (problem,) = check_settings(None, {"NOS_EC_GEOMETRY__STRIPES_PER_BLOCK": "512"})
    assert problem.text.startswith("gc.reserve_bytes: "), "the default is too little for these blocks"


def test_file_then_environment(file: Path) -> None:
    file.write_text(
        '[consumer]\nlanes = 2\nlinger_ms = 5\nmerge_list_bytes_max = "512MiB"\n[gc]\nhole_ratio_min = 0.5\n'
        '[geometry]\nchunk_size = 65536\n[logging]\nformat = "json"\n'
    )
    env = {"NOS_EC_CONSUMER__LANES": "3", "NOS_EC_GC__RESERVE_BYTES": "1 GiB", "PATH": "/bin", "NOS_ECX": "1"}
    settings = load_settings(file, env)
    assert settings.consumer.lanes == 3
    assert settings.consumer.linger_ms == 5
    assert settings.consumer.merge_list_bytes_max == 512 << 20
    assert settings.gc.reserve_bytes == 1 << 30
    assert settings.gc.hole_ratio_min == 0.5
    assert settings.geometry.value() == Geometry(chunk_size=65536)
    assert settings.logging.format == "json"


def test_variables_that_are_not_settings_are_ignored() -> None:
    assert (
        check_settings(None, {"NOS_EC_CONFIG": "x.toml", "NOS_EC_KILL_AT": "put.landed", "NOS_EC_DEV_PORT": "1"}) == []
    )


def test_every_relative_path_in_a_file_starts_at_the_file(tmp_path: Path) -> None:
    paths = [
        (section, key)
        for section in Settings.model_fields
        for key, field in fields_of(section).items()
        if "Path" in str(field.annotation)
    ]
    assert ("audit", "folder") in paths
    assert len(paths) >= 10
    for section, key in paths:
        (file := tmp_path / "nos-ec.toml").write_text(f'[{section}]\n{key} = "deep/name"\n')
        assert getattr(getattr(load_settings(file, {}), section), key) == tmp_path / "deep" / "name", (section, key)


def test_a_relative_root_in_a_file_starts_at_the_file(file: Path) -> None:
    file.write_text('[store]\nroot = "data"\n')
    assert load_settings(file, {}).store.root == file.parent / "data"
    assert load_settings(file, {"NOS_EC_STORE__ROOT": "/srv/x"}).store.root == Path("/srv/x")
    file.write_text('[store]\nroot = "/srv/y"\n')
    assert load_settings(file, {}).store.root == Path("/srv/y")


def test_metadata_url_defaults_to_a_file_in_root_and_is_never_shown(tmp_path: Path) -> None:
    odd = tmp_path / "50% a?b#c"
    settings = load_settings(None, {"NOS_EC_STORE__ROOT": str(odd)})
    assert settings.store.url() == f"sqlite:///{tmp_path}/50%25%20a%3Fb%23c/metadata.db"
    secret = "mysql+pymysql://u:hunter2@db/nos_ec"
    settings = load_settings(None, {"NOS_EC_STORE__METADATA_URL": secret})
    assert settings.store.url() == secret
    assert "hunter2" not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()


def test_the_metadata_url_may_be_in_a_file_that_others_cannot_read(tmp_path: Path, file: Path) -> None:
    secret = "mysql+pymysql://u:hunter2@db/nos_ec"
    url_file = tmp_path / "metadata-url"
    file.write_text('[store]\nmetadata_url_file = "metadata-url"\n')
    settings = load_settings(file, {})
    with pytest.raises(ConfigError, match=r"metadata_url_file .*metadata-url cannot be read \(No such file"):
        settings.store.url()
    url_file.write_text(f"{secret}\n")
    url_file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"read by every user; run chmod o-r") as refused:
        settings.store.url()
    assert refused.value.settings == (settings.store.url_setting,) == ("store.metadata_url_file",)
    url_file.chmod(0o640)
    assert settings.store.url() == secret
    assert "hunter2" not in repr(settings) + str(refused.value)
    url_file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        settings.store.url()
    url_file.write_bytes(b"x" * 5000)
    with pytest.raises(ConfigError, match="longer than 4096 bytes"):
        settings.store.url()


def test_the_metadata_url_is_in_one_place(file: Path) -> None:
    file.write_text('[store]\nmetadata_url_file = "metadata-url"\n')
    (problem,) = check_settings(file, {"NOS_EC_STORE__METADATA_URL": "mysql+pymysql://u:hunter2@db/nos_ec"})
    assert problem.text == f"{file}: store.metadata_url_file: store.metadata_url is also set; remove one of them"


def test_websites_have_domains_of_their_own(file: Path) -> None:
    file.write_text("[s3]\ndomains = 'a.example, B.example'\nwebsite_domains = 'web.example, b.example'\n")
    (problem,) = check_settings(file, {})
    assert problem.setting == "s3.website_domains"
    assert "b.example is, or contains, b.example of s3.domains" in problem.text
    file.write_text("[s3]\ndomains = 's3.web.example'\nwebsite_domains = 'web.example'\n")
    (problem,) = check_settings(file, {})
    assert "web.example is, or contains, s3.web.example of s3.domains" in problem.text
    file.write_text("[s3]\ndomains = 'example.org'\nwebsite_domains = 'web.example.org, xn--fr-xka.example'\n")
    assert not list(check_settings(file, {}))


@pytest.mark.parametrize(
    "domain", ["*.example.org", ".example.org", "example.org.", "example.org:80", "http://a", "für"]
)
@pytest.mark.parametrize("name", ["domains", "website_domains"])
def test_a_domain_that_no_host_could_match_is_refused(file: Path, name: str, domain: str) -> None:
    file.write_text(f"[s3]\n{name} = 'example.com, {domain}'\n")
    (problem,) = check_settings(file, {})
    assert problem.setting == f"s3.{name}"
    assert f"{domain}' is not allowed; use domains such as s3.example.com" in problem.text


def test_every_problem_is_named_with_its_place(file: Path) -> None:
    file.write_text(
        "stray = 1\nput = 3\n[consumer]\nlanes = 0\nlane = 2\npolicy = 'worst'\nwindow_objects = true\n"
        "[gc]\nlinger_ms = 1\nhole_ratio_min = 0\nreserve_bytes = '12 MB'\n[geometri]\nk = 4\n[store]\nroot = ''\n"
    )
    env = {
        "NOS_EC_PUT__MIN_AGE_MS": "soon",
        "NOS_EC_CONSUMER_LANES": "2",
        "NOS_EC_WHATEVER": "",
        "NOS_EC_CONSUMER__LINGER_MS": "-1",
    }
    problems = check_settings(file, env)
    assert sorted(problem.text for problem in problems) == sorted(
        [
            f"{file}: [stray]: no such section; remove it, or see docs/CONFIG.md for all settings",
            f"{file}: put: put is a section; write [put] and its keys below",
            f"{file}: [geometri]: no such section; did you mean geometry?",
            f"{file}: consumer.lane: no such setting; did you mean consumer.lanes?",
            f"{file}: gc.linger_ms: no such setting; did you mean consumer.linger_ms?",
            "environment variable NOS_EC_CONSUMER_LANES: no such setting; did you mean NOS_EC_CONSUMER__LANES?",
            "environment variable NOS_EC_WHATEVER: no such setting; remove it, or see docs/CONFIG.md for all settings",
            f"{file}: consumer.lanes: 0 is not allowed; use a whole number, 1 to 64",
            f'{file}: consumer.policy: \'worst\' is not allowed; use "best" or "nos"',
            f"{file}: consumer.window_objects: True is not allowed; use a whole number, 1 to 1000000",
            f"{file}: gc.hole_ratio_min: 0 is not allowed; use a number, more than 0 to 1",
            f"{file}: gc.reserve_bytes: '12 MB' is not allowed; use a size from 0 to 1024TiB: bytes, or a string such"
            ' as "512MiB"',
            f"{file}: store.root: '' is not allowed; use a path",
            "environment variable NOS_EC_PUT__MIN_AGE_MS: 'soon' is not allowed; use a whole number, 0 to 2592000000",
            "environment variable NOS_EC_CONSUMER__LINGER_MS: -1 is not allowed; use a whole number, 0 to 86400000",
        ]
    )
    with pytest.raises(ConfigError) as error:
        load_settings(file, env)
    assert str(error.value) == "\n".join(problem.text for problem in problems)
    assert sorted(error.value.settings) == [
        "consumer.lanes",
        "consumer.linger_ms",
        "consumer.policy",
        "consumer.window_objects",
        "gc.hole_ratio_min",
        "gc.reserve_bytes",
        "put",
        "put.min_age_ms",
        "store.root",
    ]


def test_retired_settings_are_named_and_ignored(file: Path) -> None:
    """A daemon starts and logs what to do; `config check` reports them like every other problem."""
    file.write_text("[consumer]\nidle_wait_ms = 'whatever'\nlanes = 3\n[scrub]\ndaemon = false\n")
    env = {"NOS_EC_MONITORING__GC_PORT": "9469"}
    place = "no longer a setting, and ignored"
    said = [
        f"{file}: consumer.idle_wait_ms: {place}: it is 500; remove it",
        f"{file}: scrub.daemon: {place}: instead of false, set scrub.pass_days = 0; remove it",
        f"environment variable NOS_EC_MONITORING__GC_PORT: {place}: {RETIRED['monitoring.gc_port']}; remove it",
    ]
    assert [problem.text for problem in check_settings(file, env)] == said
    with capture_logs() as logs:
        settings = load_settings(file, env)
    assert (settings.consumer.lanes, settings.scrub.pass_days, settings.monitoring.port) == (3, 14, 0)
    assert [(log["log_level"], log["problem"]) for log in logs] == [("warning", text) for text in said]
    with pytest.raises(ConfigError) as refused:
        load_settings(file, env | {"NOS_EC_CONSUMER__LANES": "0"})
    assert refused.value.settings == ("consumer.lanes",), "only what is wrong stops it"


def test_no_retired_setting_exists() -> None:
    sections = {name.partition(".")[0] for name in RETIRED}
    assert sections <= Settings.model_fields.keys()
    assert RETIRED.keys() & {f"{section}.{key}" for section in sections for key in fields_of(section)} == set()


@pytest.mark.parametrize("setting", ["store.root", "ceph.conf_file", "api.token_file"])
def test_a_path_that_no_file_can_have_is_refused(file: Path, setting: str) -> None:
    file.write_text(f'{setting} = "a\\u0000b"\n')
    (problem,) = check_settings(file, {})
    assert problem.setting == setting
    assert problem.text.endswith("is not allowed; use a path")


@pytest.mark.parametrize(("text", "found"), [("true", True), ("false", False), ("1", None), ("yes", None), ("", None)])
def test_truth_values_in_the_environment(text: str, found: bool | None) -> None:
    env = {"NOS_EC_API__ANONYMOUS": text}
    if found is None:
        (problem,) = check_settings(None, env)
        assert problem.text.endswith(f"NOS_EC_API__ANONYMOUS: {text!r} is not allowed; use true or false")
    else:
        assert load_settings(None, env).api.anonymous is found


def test_the_token_is_never_shown(file: Path) -> None:
    settings = load_settings(None, {"NOS_EC_API__TOKEN": "hunter2-hunter2-hunter2"})
    assert "hunter2" not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()
    file.write_text('[api]\ntoken = ["hunter2"]\ntoken_file = "token"\n')
    (problem,) = check_settings(file, {})
    assert problem.setting == "api.token"
    assert "hunter2" not in problem.text
    file.write_text('[api]\ntoken_file = "token"\n')
    assert load_settings(file, {}).api.token_file == file.parent / "token"


def test_a_wrong_metadata_url_is_not_shown(file: Path) -> None:
    file.write_text("[store]\nmetadata_url = ['mysql://u:hunter2@db/x']\n")
    (problem,) = check_settings(file, {})
    assert problem.setting == "store.metadata_url"
    assert "hunter2" not in problem.text


@pytest.mark.parametrize(
    ("env", "setting", "problem"),
    [
        (
            {"NOS_EC_GEOMETRY__CHUNK_SIZE": "20000"},
            "geometry",
            "geometry: chunk_size is 20000; it must be a multiple of 4096",
        ),
        (
            {"NOS_EC_GEOMETRY__STRIPES_PER_BLOCK": "2"},
            "geometry",
            "stripes_per_group_max is 4 and stripes_per_block is 2",
        ),
        (
            {"NOS_EC_CONSUMER__MERGE_LIST_BYTES_MAX": "1MiB"},
            "consumer.merge_list_bytes_max",
            "less than a stripe group; use at least 4194304",
        ),
        ({"NOS_EC_PRODUCER__REPUBLISH_MS": "60000"}, "producer.republish_ms", "use more than 60000"),
    ],
)
def test_incompatible_settings_are_refused(env: dict[str, str], setting: str, problem: str) -> None:
    (found,) = check_settings(None, env)
    assert problem in found.text
    with pytest.raises(ConfigError) as error:
        load_settings(None, env)
    assert error.value.settings == (setting,)


NOT_UTF8 = "/srv/na\udcefve"
"""How Python represents a name in Latin-1."""


@pytest.mark.parametrize(
    "variable",
    [
        "STORE__ROOT",
        "CEPH__CONF_FILE",
        "CEPH__KEYRING_FILE",
        "CEPH__ADMIN_KEYRING_FILE",
        "CEPH__NAMESPACE",
        "API__TOKEN_FILE",
        "KAFKA__TOPIC",
    ],
)
def test_bytes_that_are_not_utf8_are_named(variable: str) -> None:
    (problem,) = check_settings(None, {f"NOS_EC_{variable}": NOT_UTF8})
    assert problem.text.startswith(
        f"environment variable NOS_EC_{variable}: '/srv/na\\udcefve' is not valid UTF-8; rename"
    )
    (problem,) = check_settings(None, {"NOS_EC_STORE__METADATA_URL": f"mysql://u:hunter2@h/{NOT_UTF8}"})
    assert "METADATA_URL: the value (secret, not shown) is not valid UTF-8" in problem.text
    assert "hunter2" not in problem.text


def test_a_folder_name_that_is_not_utf8_is_named_where_a_relative_root_would_be_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "na\udcefve"
    folder.mkdir()
    (folder / "nos-ec.toml").write_text('[store]\nroot = "data"\n')
    (problem,) = check_settings(folder / "nos-ec.toml", {})
    assert "nos-ec.toml: store.root: " in problem.text
    assert "na\\udcefve/data' is not valid UTF-8" in problem.text
    monkeypatch.chdir(folder)
    (problem,) = check_settings(None, {})
    assert problem.text == f"store.root: {str(folder / 'var/nos_ec')!r} is not valid UTF-8; {UTF8_ADVICE}"
    assert check_settings(None, {"NOS_EC_STORE__ROOT": "/srv/x"}) == []
    with pytest.raises(ConfigError, match="is not valid UTF-8") as error:
        require_root(Path("scratch"))
    assert error.value.settings == ("store.root",)


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"nos-ec\.toml: no such file; create it, or give another path"):
        load_settings(file, {})


def test_a_folder_is_not_accepted_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path, {})


def test_invalid_toml_names_line_and_column(file: Path) -> None:
    file.write_text("[consumer]\nlanes = = 2\n")
    with pytest.raises(ConfigError, match=r"not valid TOML: .*line 2, column 9"):
        load_settings(file, {})


def test_a_file_in_another_encoding_is_named(file: Path) -> None:
    file.write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="byte 5 is not UTF-8"):
        load_settings(file, {})


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [
        ("k", 1, K_MAX),
        ("m", 1, M_MAX),
        ("chunk_size", CHUNK_SIZE_MIN, CHUNK_SIZE_MAX),
        ("stripes_per_block", 1, STRIPES_PER_BLOCK_MAX),
        ("stripes_per_group_max", 1, STRIPES_PER_BLOCK_MAX),
    ],
)
def test_settings_have_the_limits_of_the_geometry(key: str, low: int, high: int) -> None:
    fields = {"k": 1, "m": 1, "chunk_size": CHUNK_SIZE_MIN, "stripes_per_block": 1, "stripes_per_group_max": 1}
    if key == "stripes_per_group_max":
        fields["stripes_per_block"] = high
    for value in (low, high):
        fields[key] = value
        assert GeometrySettings(**fields).value() == Geometry(**fields)
    for value in (low - 1, high + 1):
        fields[key] = value
        with pytest.raises(ValidationError):
            GeometrySettings(**fields)
        with pytest.raises(ConfigError):
            Geometry(**fields)


@pytest.mark.parametrize(
    "stated",
    [
        f"| k | 1 to {K_MAX} |",
        f"| m | 1 to {M_MAX} |",
        f"{CHUNK_SIZE_MIN >> 10} KiB to {CHUNK_SIZE_MAX >> 20} MiB, whole pages",
        f"1 to {STRIPES_PER_BLOCK_MAX}, and `first_stripe` + `stripe_count` is at most {STRIPES_PER_BLOCK_MAX};",
        f"the group is at most {BLOCK_SIZE_MAX >> 30} GiB",
    ],
)
def test_the_format_states_the_limits_of_the_geometry(stated: str) -> None:
    assert stated in (DOCS / "FORMAT.md").read_text()


def test_the_defaults_of_the_reference_are_taken(tmp_path: Path) -> None:
    """Each default is used exactly as the reference shows it."""
    lines, section = list[str](), ""
    for line in reference().splitlines():
        if line.startswith("## ["):
            section = line.removeprefix("## ")
        elif match := re.match(r"\| `(\w+)` \| `(.+?)` \|", line):
            lines.append(f"{section}\n{match[1]} = {match[2]}")
    assert len(lines) > 60
    for number, text in enumerate(lines):
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        problems = ""
        try:
            load_settings(file, {})
        except ConfigError as error:
            problems = str(error)
        name = text.splitlines()[1].partition(" ")[0]
        assert f"{name}: " not in problems, f"{text}: {problems}"


def test_the_reference_is_up_to_date() -> None:
    assert (DOCS / "CONFIG.md").read_text() == reference(), "run `make reference`"


def test_every_setting_says_what_it_is() -> None:
    for section in Settings.model_fields.values():
        assert isinstance(section.annotation, type)
        for key, field in section.annotation.model_fields.items():
            assert field.description, key
            assert field.description.endswith("."), key


def test_a_backend_needs_its_servers(file: Path) -> None:
    file.write_text('[store]\nbackend = "ceph"\n[log]\nbackend = "kafka"\n')
    assert [problem.setting for problem in check_settings(file, {})] == ["ceph.conf_file", "kafka.servers"]
    file.write_text(file.read_text() + '[ceph]\nconf_file = "ceph.conf"\n[kafka]\nservers = "127.0.0.1:9092"\n')
    assert check_settings(file, {}) == []
    assert load_settings(file, {}).ceph.conf_file == file.parent / "ceph.conf"


def test_options_of_kafka_come_as_a_table_or_as_json(file: Path) -> None:
    file.write_text('[kafka.options]\n"security.protocol" = "SASL_SSL"\nsasl.mechanism = "PLAIN"\nlinger.ms = 5\n')
    env = {"NOS_EC_KAFKA__SECRETS": '{"sasl.password": "hunter2"}'}
    settings = load_settings(file, env)
    assert settings.kafka.options == {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "linger.ms": 5}
    assert settings.kafka.all_options() == settings.kafka.options | {"sasl.password": "hunter2"}
    assert "hunter2" not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('spread = "all"', """log.spread: 'all' is not allowed; use "auto" or a whole number, 1 to 1024"""),
        ("spread = true", 'log.spread: True is not allowed; use "auto" or a whole number, 1 to 1024'),
        ("spread = 0", 'log.spread: 0 is not allowed; use "auto" or a whole number, 1 to 1024'),
        ("spread = 1.5", 'log.spread: 1.5 is not allowed; use "auto" or a whole number, 1 to 1024'),
        ("spread = 9", 'log.spread: 9 is more than log.partitions; use 1 to 8, or "auto"'),
        ("spread_buckets.a = 9", 'log.spread_buckets: bucket a: 9 is more than log.partitions; use 1 to 8, or "auto"'),
        ("spread_buckets = 3", "log.spread_buckets: 3 is not allowed; use a table of buckets such as"),
        ('spread_buckets = {a = "x"}', "log.spread_buckets: 'x' is not allowed; use a table of buckets such as"),
        ('spread_buckets = {"a/b" = 2}', "log.spread_buckets: this is not a valid bucket name: bucket 'a/b':"),
    ],
)
def test_a_spread_that_cannot_be_is_refused(file: Path, text: str, problem: str) -> None:
    file.write_text(f"[log]\npartitions = 8\n{text}\n")
    (found,) = check_settings(file, {})
    assert found.text.removeprefix(f"{file}: ").startswith(problem)


def test_spread_comes_from_the_file_or_the_environment(file: Path) -> None:
    file.write_text('[log]\nspread = 1\n[log.spread_buckets]\nphotos = 8\n"my.mail" = "auto"\n')
    log = load_settings(file, {}).log
    assert (log.spread, log.spread_buckets) == (1, {"photos": 8, "my.mail": "auto"})
    env = {"NOS_EC_LOG__SPREAD": "4", "NOS_EC_LOG__SPREAD_BUCKETS": '{"photos": 2, "mail": "auto"}'}
    log = load_settings(file, env).log
    assert (log.spread, log.spread_buckets) == (4, {"photos": 2, "mail": "auto"})
    assert load_settings(None, {"NOS_EC_LOG__SPREAD": "auto"}).log.spread == "auto"


@pytest.mark.parametrize(
    ("value", "found_ms"),
    [("5000", 5000), ('"5000"', 5000), ("999", None), ("180001", None), ('"soon"', None), ("true", None)],
)
def test_the_time_limit_of_kafka_is_an_option(file: Path, value: str, found_ms: int | None) -> None:
    file.write_text(f"[kafka.options]\nsocket.timeout.ms = {value}\n")
    if found_ms is None:
        (problem,) = check_settings(file, {})
        assert problem.text.endswith("kafka.options: socket.timeout.ms must be a whole number, 1000 to 180000")
    else:
        assert load_settings(file, {}).kafka.request_timeout_ms == found_ms


def test_values_that_follow_from_others(file: Path) -> None:
    def settings(text: str) -> Settings:
        file.write_text(text)
        return load_settings(file, {})

    assert settings("").gc.price_days_min == 2
    assert settings('[gc]\npolicy = "price"\n').gc.price_days_min == 20
    assert settings("[gc]\nprice_days = 0\n").gc.price_days_min == 0
    assert load_settings(None, {"NOS_EC_GC__PRICE_DAYS": "0.5"}).gc.price_days_min == 0.5
    assert [settings(f"[consumer]\nlanes = {lanes}\n").consumer.read_threads for lanes in (1, 2, 6)] == [8, 8, 16]
    assert settings("[ceph]\nop_timeout_ms = 30000\n").ceph.connect_timeout_ms == 45_000
    assert stall_ms_max(settings("[ceph]\nop_timeout_ms = 60000\n")) == 120_000
    ceph = '[store]\nbackend = "ceph"\n[ceph]\nconf_file = "ceph.conf"\nop_timeout_ms = 60000\n'
    assert stall_ms_max(settings(ceph)) == 180_000
    assert collector_options(settings(ceph)).block_grace_ms_min == 70_000
    assert collector_options(settings("")).block_grace_ms_min == 60_000


def test_secrets_of_kafka_are_never_shown(file: Path) -> None:
    (problem,) = check_settings(None, {"NOS_EC_KAFKA__SECRETS": "sasl.password=hunter2"})
    assert "NOS_EC_KAFKA__SECRETS" in problem.text
    assert problem.setting == "kafka.secrets"
    assert "hunter2" not in problem.text
    file.write_text('[kafka.options]\n"sasl.password" = "hunter2"\n[kafka.secrets]\n"ssl.key.password" = [1]\n')
    assert check_settings(file, {})[0].setting == "kafka.secrets"
    file.write_text('[kafka.options]\n"sasl.password" = "hunter2"\n')
    (problem,) = check_settings(file, {})
    said = "kafka.options: sasl.password is a secret and would be shown; move it to kafka.secrets"
    assert problem.text == f"{file}: {said}"


def test_written_settings_read_back(file: Path) -> None:
    env = {
        "NOS_EC_STORE__ROOT": '/srv/a "quoted" \\ place é',
        "NOS_EC_STORE__METADATA_URL": "mysql+pymysql://u:p%40ss@db/x",
        "NOS_EC_CONSUMER__LANES": "3",
        "NOS_EC_GC__HOLE_RATIO_MIN": "0.5",
        "NOS_EC_API__ANONYMOUS": "true",
        "NOS_EC_CEPH__NAMESPACE": "n",
        "NOS_EC_KAFKA__OPTIONS": '{"security.protocol": "SSL", "linger.ms": 5, "debug.on": true}',
        "NOS_EC_KAFKA__SECRETS": '{"sasl.password": "x"}',
    }
    settings = load_settings(None, env)
    write_settings(settings, file)
    assert load_settings(file, {}) == settings
    assert file.stat().st_mode & 0o077 == 0
    write_settings(Settings(), file)
    assert load_settings(file, {}) == Settings()


def test_the_environment_without_settings() -> None:
    env = {"PATH": "/bin", "NOS_EC_STORE__ROOT": "x", "NOS_EC_KILL_AT": "a", "NOS_EC_CONFIG": "c"}
    assert without_settings(env) == {"PATH": "/bin", "NOS_EC_KILL_AT": "a", "NOS_EC_CONFIG": "c"}
