"""The CUDA backend on whatever GPUs are there: `python -m tests.hardware.run`, from the repository.

Tables of the devices, of every path tried in processes of its own, of the kernels against the CPU, of their
speed beside cuMemcpy's, and of how long a worker takes to start. `--software` runs it on the test double in
tests/fakecuda, whose speeds say nothing. Exit code 1 where data was wrong, or a process crashed or hung.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from dmabuf_mp import backends
from dmabuf_mp.model import Path

PARTS = ("kernels", "speed", "start", "paths")
BAD = ("FAILED", "error", "crashed", "hung")
COLUMNS = (
    ("cuda:0", "cuda:0", "same"),
    ("cuda:0", "cuda:0", "separate"),
    ("cuda:0", "cuda:1", "same"),
    ("cuda:0", "cuda:1", "separate"),
    ("cuda:1", "cuda:0", "separate"),
    ("cuda:0", "cpu", "separate"),
    ("cpu", "cuda:0", "separate"),
)
DEVICES = """
import json
from dmabuf_mp import backends
inventory = backends.load("cuda").inventory()
print(json.dumps({"host": inventory.host, "reason": inventory.reason,
                  "devices": [{"selector": d.selector, "name": d.name, "uuid": d.uuid, **d.details}
                              for d in inventory.devices]}))
"""


class Script:
    """Starts the parts in processes of their own, each under a time limit, and prints what they say."""

    def __init__(self, software: bool) -> None:
        self.environment = dict(os.environ)
        if software:
            from tests.fakecuda.build import environment

            self.environment.update(environment())
        self.bad = 0

    def run(self, *arguments: str, limit_s: float, **variables: str) -> tuple[list[dict[str, Any]], str]:
        """Return the lines of JSON that a part printed, and how it ended where that was not well."""
        process = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment | variables,
            start_new_session=True,
        )
        ended = ""
        try:
            out, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            ended = f"hung: no end within {limit_s:g} s"
            try:
                out, errors = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                return [], f"{ended}, and SIGKILL does not end it"
        if not ended and process.returncode < 0:
            ended = f"crashed: {signal.Signals(-process.returncode).name}"
        elif not ended and process.returncode:
            ended = f"error: exit code {process.returncode}: {' '.join(errors.strip().splitlines()[-1:])}"
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")], ended

    def judge(self, ended: str) -> None:
        if ended:
            self.bad += 1
            print(f"  {ended}")

    def devices(self) -> list[dict[str, Any]]:
        print("\n== Devices")
        said, ended = self.run("-c", DEVICES, limit_s=60)
        self.judge(ended)
        if not said or said[0]["reason"]:
            print(f"  none: {said[0]['reason'] if said else 'no answer'}")
            return []
        print(f"  {said[0]['host']}")
        devices: list[dict[str, Any]] = said[0]["devices"]
        for device in devices:
            print("  " + ", ".join(f"{key} {'unknown' if v is None else v}" for key, v in device.items()))
        return devices

    def paths(self, count: int, *, dangerous: bool) -> None:
        """Print a row for each path and a column for each pair of ends; what is not a pass is a footnote."""
        print("\n== Paths, each tried in processes of its own (1p: both ends in one, 2p: in two)")
        columns = [column for column in COLUMNS if count > 1 or "cuda:1" not in column]
        heads = [
            f"{producer}→{consumer} {'1p' if process == 'same' else '2p'}".replace("cuda:", "")
            for producer, consumer, process in columns
        ]
        print(f"  {'':34}" + "".join(f"{head:>11}" for head in heads))
        notes: dict[str, int] = {}
        absent: dict[str, tuple[str, str]] = {}  # memories that this machine has not, whoever asks
        between = {path for producer, consumer, _ in columns for path in paths_between(producer, consumer)}
        for path in sorted(between, key=str):
            cells = []
            for producer, consumer, process in columns:
                by_name = path in backends.paths()["cuda"].by_name_only
                if path not in paths_between(producer, consumer) or (by_name and not dangerous):
                    cells.append("·")
                    continue
                outcome, reason = absent.get(path.memory) or self.probe(path, producer, consumer, process)
                if "no /dev/" in reason:
                    absent[path.memory] = outcome, reason
                self.bad += outcome in BAD and not by_name
                note = f"[{notes.setdefault(reason, len(notes) + 1)}]" if reason else ""
                cells.append(f"{outcome}{note}")
            print(f"  {path!s:34}" + "".join(f"{cell:>11}" for cell in cells), flush=True)
        for reason, number in notes.items():
            print(f"  [{number}] {reason}")

    def probe(self, path: Path, producer: str, consumer: str, process: str) -> tuple[str, str]:
        """Try one path; return the outcome in a word, and the reason where it is not a pass."""
        arguments = (path.memory, path.handle, path.importer, producer, consumer, process)
        said, ended = self.run("-m", "tests.hardware.probe", *arguments, limit_s=15)
        if ended or not said:
            return ended.partition(":")[0] or "error", ended or "the probe said nothing"
        return said[0]["outcome"], said[0]["reason"]

    def kernels(self, selectors: list[str], big_bytes: int) -> None:
        print(f"\n== Kernels against the CPU, bit for bit, up to {big_bytes} bytes")
        for selector in selectors:
            started = time.monotonic()
            said, ended = self.run("-m", "tests.hardware.kernels", selector, str(big_bytes), limit_s=120)
            right = Counter(case["ok"] for case in said)
            print(
                f"  {selector}: {right[True]} right, {right[False]} wrong, {time.monotonic() - started:.1f} s"
            )
            self.judge(ended)
            for case in [case for case in said if not case["ok"]][:20]:
                print(f"    {case['case']}: {case['got']}")
            self.bad += right[False] + (not said)

    def speed(self, size_bytes: int, repeats: int, sweep: list[str]) -> None:
        print(f"\n== Speed on cuda:0 in GB/s by the device's events, medians of {repeats}")
        arguments = ("tests.hardware.speed", str(size_bytes), str(repeats), *sweep)
        said, ended = self.run("-m", *arguments, limit_s=100)
        self.judge(ended)
        peak = None
        for row in said:
            if "peak" in row:
                peak = row["peak"]
                print(f"  the memory's own rate: {peak and round(peak)} GB/s")
                continue
            print(
                f"  {row['where']}" + (f": {row['error']}" if "error" in row else f", {row['bytes']} bytes")
            )
            if "error" in row:
                continue
            print(f"    cuMemcpy {row['copy']:8.1f}")
            for kind in ("ramp", "address", "random"):
                check, fill = row[f"check {kind}"], row[f"fill {kind}"]
                of_peak = f", {check / peak:.3f} of the memory's own rate" if peak else ""
                print(
                    f"    {kind:8} fill {fill:8.1f}, check {check:8.1f}"
                    f" = {check / row['copy']:.3f} of cuMemcpy{of_peak if 'own' in row['where'] else ''}"
                )
                if not row[f"right {kind}"]:
                    self.judge(f"FAILED: {kind} is wrong")
            rates = [f"{key[1:]}: {value:.1f}" for key, value in row.items() if key[1:].isdecimal()]
            if rates:
                print(f"    check ramp by blocks a multiprocessor: {', '.join(rates)}")

    def start(self, devices: list[dict[str, Any]]) -> None:
        print("\n== Start of a worker in seconds, medians of 3 (all devices visible, then one)")
        for label, variables in (("all", {}), ("one", {"CUDA_VISIBLE_DEVICES": devices[0]["uuid"]})):
            said = []
            for _ in range(3):
                rows, ended = self.run("-m", "tests.hardware.start", limit_s=30, **variables)
                self.judge(ended)
                said += rows
            if said:
                medians = {key: statistics.median(row[key] for row in said) for key in said[0]}
                print(f"  {label}: " + ", ".join(f"{key} {value:.3f}" for key, value in medians.items()))


def paths_between(producer: str, consumer: str) -> set[Path]:
    """Return the paths that lead from one device to another, as the backends declare them."""
    static = backends.paths()
    makes = static[backends.prefix_of(producer)].exports
    takes = static[backends.prefix_of(consumer)].imports
    return {
        Path(memory, handle, importer)
        for importer, readable in takes.items()
        for memory, handle in readable
        if handle in makes.get(memory, ())
    }


def main() -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--software", action="store_true", help="on the test double in tests/fakecuda")
    parser.add_argument("--only", nargs="*", choices=PARTS, help="these parts")
    parser.add_argument("--dangerous", action="store_true", help="also paths that may crash or hang a driver")
    parser.add_argument("--sweep", nargs="*", default=[], metavar="N", help="time N blocks a multiprocessor")
    options = parser.parse_args()
    wanted = options.only or PARTS
    began = time.monotonic()

    double = " (a software driver, a test double: no GPU)" if options.software else ""
    host = f"Linux {platform.release()}, Python {platform.python_version()}"
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {host}{double}")
    script = Script(options.software)
    devices = script.devices()
    if not devices:
        return 1
    selectors = [device["selector"] for device in devices]
    if "kernels" in wanted:
        script.kernels(selectors[:2], 2**24 + 4099 if options.software else 2**32 + 4099)
    if "speed" in wanted:
        script.speed(2**20 if options.software else 2**32, 11, options.sweep)
    if "start" in wanted:
        script.start(devices)
    if "paths" in wanted:
        script.paths(len(devices), dangerous=options.dangerous)
    print(f"\n{script.bad} bad, {time.monotonic() - began:.0f} s in all{double}")
    return 1 if script.bad else 0


if __name__ == "__main__":
    sys.exit(main())
