"""Reads and checks the options in the query of a MySQL URL before PyMySQL connects.

SQLAlchemy passes most options to PyMySQL as text, and PyMySQL takes any text as true: `ssl_disabled=false` would switch
TLS off. It also leaves host names unchecked, without a warning, if no authority is given. So this module reads truth
values itself. The options that it leaves in the URL mean the same to SQLAlchemy and PyMySQL:

- ssl_disabled=true, without any other ssl option
- ssl_check_hostname, which SQLAlchemy reads; ssl_verify_identity and ssl_verify_cert=false are translated to it
- no other truth value: each must have the only value that works with a store, which is the default
"""

from __future__ import annotations

import ssl
from inspect import signature

import pymysql  # type: ignore[import-untyped]
from sqlalchemy import URL
from sqlalchemy.util import asbool

from nos_ec.core.errors import ConfigError


def checked(url: URL) -> URL:
    """Return the URL with options that PyMySQL understands as they are meant. Raises ConfigError; its message does not
    contain the URL, which may contain a password."""
    twice = sorted(name for name, value in url.query.items() if not isinstance(value, str))
    if twice:
        raise ConfigError(f"the metadata URL has options more than once: {', '.join(twice)}; use each of them once")
    flags = {name: _flag(name, str(value)) for name, value in url.query.items() if name in _TLS_FLAGS | _FIXED.keys()}
    for name, value in flags.items():
        if name in _FIXED and value != _FIXED[name]:
            raise ConfigError(f"the metadata URL's {name}={_text(value)} cannot work with a store; remove it")
    options = {name: str(value) for name, value in url.query.items() if name not in flags}
    plain = url.set(query=options | _tls({name: flags[name] for name in _TLS_FLAGS & flags.keys()}, options))
    _check_driver(plain)
    return plain


def _flag(name: str, value: str) -> bool:
    try:
        return bool(asbool(value))
    except ValueError as error:
        raise ConfigError(f"the metadata URL's {name} has an invalid value ({value!r}); use true or false") from error


def _text(value: bool) -> str:
    return "true" if value else "false"


def _tls(flags: dict[str, bool], options: dict[str, str]) -> dict[str, str]:
    """Return the options that replace `flags`. Raises ConfigError for options that contradict each other."""
    others = sorted({name for name in {*flags, *options} if name.startswith("ssl")} - {"ssl_disabled"})
    if flags.pop("ssl_disabled", False):
        if others:
            raise ConfigError(
                f"the metadata URL has ssl_disabled=true and {', '.join(others)}; remove the one that you do not mean"
            )
        return {"ssl_disabled": "true"}
    wanted = sorted(name for name, value in flags.items() if value)
    if not {"ssl_ca", "ssl_capath"} & options.keys():
        if wanted:
            raise ConfigError(
                f"the metadata URL's {wanted[0]}=true needs ssl_ca, the PEM file of the authority that signed the"
                " server's certificate; without it nothing would be checked"
            )
    elif flags.pop("ssl_verify_cert", True) is False:
        raise ConfigError(
            "the metadata URL has ssl_ca, which checks the server's certificate, and ssl_verify_cert=false; remove one"
        )
    if len(set(flags.values())) > 1:
        raise ConfigError(f"the metadata URL's {' and '.join(sorted(flags))} contradict each other; remove one")
    # Without an authority they are all false: the connection is encrypted, but the server is not authenticated.
    return {"ssl_check_hostname": _text(all(flags.values()))} if flags else {}


def _check_driver(url: URL) -> None:
    """Raise ConfigError for options that PyMySQL would not accept."""
    try:
        _, options = url.get_dialect()().create_connect_args(url)
    except ValueError as error:
        raise ConfigError(f"the metadata URL has an option with an invalid value ({error}); correct it") from error
    known = signature(pymysql.connect).parameters.keys() - _NOT_TEXT
    unknown = {name for name, value in options.items() if name not in known and isinstance(value, str)}
    if unknown:
        raise ConfigError(
            f"the metadata URL has options that PyMySQL does not know: {', '.join(sorted(unknown))}; remove them, or"
            " correct their names (for TLS: ssl_ca, ssl_cert, ssl_key)"
        )
    _check_certificates({name: path for name, path in options.get("ssl", {}).items() if name in _CERTIFICATES})


def _check_certificates(files: dict[str, str]) -> None:
    if not files:
        return
    try:
        context = ssl.create_default_context(cafile=files.get("ca"), capath=files.get("capath"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except OSError as error:
        named = ", ".join(f"ssl_{name} {path}" for name, path in files.items())
        raise ConfigError(f"the metadata URL's {named}: {error.strerror or error}; name PEM files") from error


_TLS_FLAGS = {"ssl_disabled", "ssl_check_hostname", "ssl_verify_cert", "ssl_verify_identity"}
_FIXED = {
    "autocommit": False,
    "binary_prefix": False,
    "compress": False,
    "defer_connect": False,
    "local_infile": False,
    "named_pipe": False,
    "use_unicode": True,
}
"""Truth values that must keep their defaults: transactions, text columns and connecting depend on them."""

_NOT_TEXT = {"auth_plugin_map", "conv", "cursorclass", "max_allowed_packet", "port", "ssl"}
"""Arguments of PyMySQL that cannot be passed as text in a query."""

_CERTIFICATES = ("ca", "capath", "cert", "key")
