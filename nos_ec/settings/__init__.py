"""Settings: one TOML file, and environment variables over it.

A key `lanes` of the section `[consumer]` is `NOS_EC_CONSUMER__LANES` in the environment. A wrong key or value is
never skipped and never guessed: all of them are reported at once, each with the place it was written at.
"""

from nos_ec.settings.checks import require_root
from nos_ec.settings.loading import check_settings, load_settings, without_settings, write_settings
from nos_ec.settings.sections import ApiSettings, Settings

__all__ = [
    "ApiSettings",
    "Settings",
    "check_settings",
    "load_settings",
    "require_root",
    "without_settings",
    "write_settings",
]
