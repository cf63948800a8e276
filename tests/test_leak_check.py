"""The leak check itself can fail: it runs on tests that leak on purpose."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

LEAKING = """
import os, subprocess, threading, time

kept = []

def test_fd():
    kept.append(os.pipe())

def test_fd_under_an_old_number():
    kept.append(os.open("/dev/null", os.O_RDONLY))

def test_fd_swapped():
    os.dup2(os.open("/dev/zero", os.O_RDONLY), kept.pop())

def test_child():
    kept.append(subprocess.Popen(["sleep", "60"]))

def test_zombie():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

def test_thread():
    event = threading.Event()
    kept.append(event)
    threading.Thread(target=event.wait, daemon=True).start()

def test_nothing():
    pass

def test_what_is_given_back():
    read, write = os.pipe()
    os.close(read)
    os.close(write)

def test_last():
    for thing in kept:
        if hasattr(thing, "kill"):
            thing.kill()
            thing.wait()
"""


def test_the_check_fails_for_each_kind_of_leak_and_for_nothing_else(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_leaking.py").write_text(LEAKING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rE",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            tmp_path,
            tmp_path,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    caught = set(re.findall(r"^ERROR test_leaking.py::(\w+)", run.stdout, re.MULTILINE))
    assert caught == {
        "test_fd",
        "test_fd_under_an_old_number",
        "test_fd_swapped",
        "test_child",
        "test_zombie",
        "test_thread",
    }, run.stdout
    assert "left behind: fd" in run.stdout
    assert "left behind: child" in run.stdout
    assert "left behind: thread" in run.stdout
