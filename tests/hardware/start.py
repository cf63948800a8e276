"""How long a worker takes to start: `python -m tests.hardware.start`. Prints one line of JSON, in seconds."""

from __future__ import annotations

import json
import time

from dmabuf_mp import backends


def main() -> None:
    times = [time.perf_counter()]
    backend = backends.load("cuda")  # imports the bindings while the driver starts
    times.append(time.perf_counter())
    devices = backend.inventory().devices
    times.append(time.perf_counter())
    device = backend.open(devices[0].selector)
    times.append(time.perf_counter())
    device.close()
    steps = zip(("import and initialise", "inventory", "open"), times, times[1:], strict=False)
    print(json.dumps({name: after - before for name, before, after in steps}))


if __name__ == "__main__":
    main()
