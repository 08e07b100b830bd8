"""Settings: one TOML file, overridden by environment variables.

The key `lanes` of the section `[consumer]` is `NOS_EC_CONSUMER__LANES` in the environment. Wrong keys and values are
never ignored: all of them are reported at once, each with the place where it was set.
"""

from nos_ec.settings.checks import Problem, refusal, require_root
from nos_ec.settings.loading import check_settings, load_settings, without_settings, write_settings
from nos_ec.settings.masking import shown_settings
from nos_ec.settings.s3 import S3Settings
from nos_ec.settings.secret_files import read_secret
from nos_ec.settings.sections import ApiSettings, Cell, ConsoleSettings, Settings

__all__ = [
    "ApiSettings",
    "Cell",
    "ConsoleSettings",
    "S3Settings",
    "Problem",
    "Settings",
    "check_settings",
    "load_settings",
    "read_secret",
    "refusal",
    "require_root",
    "shown_settings",
    "without_settings",
    "write_settings",
]
