"""`nos-ec` that halts in the middle of its work: where NOS_EC_KILL_AT would kill it, it stops until SIGCONT comes."""

from __future__ import annotations

import signal
from unittest.mock import patch

from nos_ec.cli import main

if __name__ == "__main__":
    with patch("signal.SIGKILL", signal.SIGSTOP):
        main()
