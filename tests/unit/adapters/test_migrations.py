"""The versions of the schema, which are found without alembic so that commands start sooner."""

from __future__ import annotations

import subprocess
import sys

from alembic.script import ScriptDirectory

from nos_ec.adapters.sql.tables.migrate import _config, _revisions, schema_head


def test_names_of_migrations_contain_their_versions() -> None:
    scripts = ScriptDirectory.from_config(_config())
    assert schema_head() == scripts.get_current_head()
    assert _revisions() == {script.revision for script in scripts.walk_revisions()}


def test_a_command_starts_without_alembic() -> None:
    program = "import sys, nos_ec.cli; sys.exit('alembic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
