"""Runs the cases on the software driver, a test double: `python -m tests.backends.cuda.runner`.

Started by test_on_double.py in an environment that loads the double. Each case runs in a process of its own,
forked from one that has imported everything and initialised nothing, and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback

import dmabuf_mp.backends.cpu.backend
import dmabuf_mp.backends.cuda.backend  # noqa: F401  (load() would begin to start the driver, too)
from tests.backends.cuda import device_cases, memory_cases  # noqa: F401  (they register their cases)
from tests.backends.cuda.double import CASES

DEADLINE_S = 60


def run(name: str) -> tuple[int, str]:
    """Run one case in a child; return how it ended, and what it printed."""
    function, switches = CASES[name]
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            status = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                signal.alarm(DEADLINE_S)
                os.environ.update({f"FAKECUDA_{key}": str(value) for key, value in switches.items()})
                function()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return status, output.read()


def main() -> None:
    for name in CASES:
        status, output = run(name)
        print(json.dumps({"name": name, "status": status, "output": output}), flush=True)


if __name__ == "__main__":
    main()
