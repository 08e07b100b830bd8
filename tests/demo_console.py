"""Runs `make demo` with the console, opens pages, and ends it as Ctrl-C does: a step of tests/fresh_machine.sh.

    python3 tests/demo_console.py DEMO_ARGS

It needs nothing but Python's standard library, and fails if a page does not come, or if the demo does not end by itself
after that, with a sentence on where it has kept the store.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from urllib.request import urlopen

WAIT_S_MAX = 60
PAGES = {
    "/": "<title>Overview - nos_ec</title>",
    "/last-night": "<title>Last night - nos_ec</title>",
    "/static/console.css": "",
}


def main(demo_args: str) -> int:
    """Run the demo with these arguments, and return the exit code."""
    command = ["make", "demo", f"DEMO_ARGS=--console {demo_args}"]
    # A session of its own, so that the signal reaches make and the demo, as Ctrl-C does, and not this script.
    demo = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", start_new_session=True
    )
    assert demo.stdout is not None
    opened = kept = False
    try:
        for line in demo.stdout:
            print(line, end="", flush=True)
            kept = kept or (opened and line.startswith("the store was kept"))
            if (found := re.search(r"listening on (http://\S+)", line)) is not None:
                for path, said in PAGES.items():
                    with urlopen(found[1] + path, timeout=WAIT_S_MAX) as answer:
                        assert said in answer.read().decode(), path
                    print(f"opened {path}", flush=True)
                opened = True
                os.killpg(demo.pid, signal.SIGINT)
    except BaseException:
        os.killpg(demo.pid, signal.SIGKILL)
        raise
    finally:
        demo.wait()
    print(f"pages opened: {opened}; the demo ended by itself: {kept}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
