"""Loads the certificate of a gateway that serves HTTPS. A renewed certificate is used without a restart.

Source: RFC 8446 (TLS 1.3), RFC 5246 (TLS 1.2). Older versions are refused, as Python's defaults do.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NoReturn

import structlog

from nos_ec.core.errors import ConfigError
from nos_ec.settings import S3Settings

_log = structlog.get_logger(__name__)

_CERTIFICATE, _KEY = "s3.certificate_file", "s3.key_file"
_Version = tuple[tuple[int, int, int], ...]


def find_certificate(settings: S3Settings) -> Certificate | None:
    """Return the configured certificate; None for plain HTTP. Raises ConfigError if the files cannot be used, or if
    only one of them is set."""
    if settings.certificate_file is None and settings.key_file is None:
        return None
    if settings.certificate_file is None or settings.key_file is None:
        given, missing = (_KEY, _CERTIFICATE) if settings.certificate_file is None else (_CERTIFICATE, _KEY)
        raise ConfigError(
            f"{given} is set without {missing}; set both for HTTPS, or neither", settings=(missing, given)
        )
    return Certificate(settings.certificate_file, settings.key_file)


class Certificate:
    """A chain of certificates and the private key, in PEM files."""

    def __init__(self, file: Path, key_file: Path) -> None:
        """Raise ConfigError if the files cannot be read, do not belong together, or if other users can read the
        key."""
        self._file = file
        self._key_file = key_file
        self._complaint = ""
        self._seen = self._version()
        self._newest = self._load()
        self.context = self._load()
        """The context of the server. It makes each handshake use the newest certificate."""
        self.context.sni_callback = self._choose

    def renew(self) -> None:
        """Load the files again if they have changed. If the new ones cannot be used, log that once and keep the old
        certificate. Call it periodically."""
        try:
            version = self._version()
            if version == self._seen:
                return
            self._seen = version
            self._newest = self._load()
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.error("cannot use the renewed certificate; still serving the old one", error=self._complaint)
            return
        self._complaint = ""
        _log.info("certificate renewed", file=str(self._file))

    def _choose(self, handshake: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Set the newest certificate. Called for each handshake, also if the client sends no server name."""
        handshake.context = self._newest

    def _version(self) -> _Version:
        """Return a value that changes when the files change."""
        found = []
        for path, setting in ((self._file, _CERTIFICATE), (self._key_file, _KEY)):
            try:
                stat = path.stat()
            except OSError as error:
                raise _unreadable(path, setting, error) from error
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        for path, setting in ((self._file, _CERTIFICATE), (self._key_file, _KEY)):
            try:
                with path.open("rb") as file:
                    file.read(1)
            except OSError as error:
                raise _unreadable(path, setting, error) from error
        if self._key_file.stat().st_mode & 0o004:
            raise ConfigError(
                f"{_KEY} {self._key_file} can be read by every user; run chmod o-r on it, and replace key and"
                " certificate",
                settings=(_KEY,),
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._file, self._key_file, password=self._has_passphrase)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"{_CERTIFICATE} {self._file} and {_KEY} {self._key_file} cannot be used ({_reason(error)}); give a"
                " chain of certificates in PEM form, the server's own first, and the private key that belongs to it",
                settings=(_CERTIFICATE, _KEY),
            ) from error
        return context

    def _has_passphrase(self) -> NoReturn:
        raise ConfigError(
            f"{_KEY} {self._key_file} has a passphrase, which the gateway cannot ask for; remove it, for example with"
            " openssl pkey -in FILE -out FILE, and let only this user read the file",
            settings=(_KEY,),
        )


def _unreadable(path: Path, setting: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{setting} {path} cannot be read ({error.strerror}); let the user of the gateway read it", settings=(setting,)
    )


def _reason(error: OSError) -> str:
    """Return the reason that OpenSSL gives."""
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    return {"KEY_VALUES_MISMATCH": "the key belongs to another certificate"}.get(str(reason), str(reason))
