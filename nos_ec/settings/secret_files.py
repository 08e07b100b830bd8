"""Files that hold one secret, such as the credentials that systemd passes to a service."""

from __future__ import annotations

from pathlib import Path

from nos_ec.core.errors import ConfigError

_BYTES_MAX = 4096


def read_secret(path: Path, setting: str, advice: str) -> str:
    """Return the content of a file without surrounding white space.

    `setting` is the dotted name of the setting that names the file. `advice` tells users in messages how to create it.
    Raises ConfigError for a file that cannot be read, can be read by every user, is not UTF-8, or is longer than 4 KiB.
    """

    def refused(why: str) -> ConfigError:
        return ConfigError(f"{setting} {path} {why}", settings=(setting,))

    try:
        if path.stat().st_mode & 0o004:
            raise refused("can be read by every user; run chmod o-r on it, and replace the secret")
        with path.open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise refused(f"cannot be read ({error.strerror}); {advice}") from error
    if len(content) > _BYTES_MAX:
        raise refused(f"is longer than {_BYTES_MAX} bytes; {advice}")
    try:
        return content.decode().strip()
    except UnicodeDecodeError as error:
        raise refused(f"is not UTF-8; {advice}") from error
