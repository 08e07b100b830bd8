"""Encrypted connections to the database, and the errors when encryption is impossible."""

from __future__ import annotations

import ssl
from contextlib import closing

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.core.errors import ConfigError
from tests.rig.dev_servers import DevServer
from tests.rig.sql.sql_servers import empty_metadata

pytestmark = pytest.mark.real


def encrypted(url: str, authority: str) -> str:
    """The server's own certificates are not for any host name."""
    return f"{url}?ssl_ca={authority}&ssl_check_hostname=false"


def test_connections_are_encrypted_and_the_server_is_checked(mysql_server: DevServer) -> None:
    certificates = mysql_server.folder / "data"
    url = encrypted(mysql_server.url, str(certificates / "ca.pem"))
    with closing(make_engine(url).connect()) as connection:
        assert connection.execute(text("SHOW SESSION STATUS LIKE 'Ssl_cipher'")).one()[1]
    with empty_metadata(url) as metadata:
        assert metadata.totals().packed_objects == 0
    with pytest.raises(ConfigError, match=r"certificate cannot be verified.*ssl_ca"):
        open_metadata(encrypted(mysql_server.url, str(certificates / "client-cert.pem")))
    with pytest.raises(ConfigError, match=r"ssl_ca no-such-file.*PEM"):
        open_metadata(encrypted(mysql_server.url, "no-such-file"))
    with pytest.raises(ConfigError, match=r"certificate cannot be verified.*ssl_ca"):
        open_metadata(f"{mysql_server.url}?ssl_ca={certificates}/ca.pem")


def test_without_options_they_are_encrypted_when_the_server_can(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ssl.SSLContext] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda self, *_: read.append(self))
    with closing(make_engine(mysql_url).connect()) as connection:
        assert connection.execute(text("SHOW SESSION STATUS LIKE 'Ssl_cipher'")).one()[1]
    assert read == []  # none of them would be used


def test_a_server_that_cannot_encrypt_is_refused(mariadb_url: str, mysql_server: DevServer) -> None:
    with closing(create_engine(mariadb_url, poolclass=NullPool).connect()) as connection:
        assert not connection.execute(text("SHOW SESSION STATUS LIKE 'Ssl_cipher'")).one()[1]
    with pytest.raises(ConfigError, match=r"does not support encryption: set up TLS"):
        open_metadata(encrypted(mariadb_url, str(mysql_server.folder / "data" / "ca.pem")))
