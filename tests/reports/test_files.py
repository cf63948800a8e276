from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from dmabuf_mp.reports import files
from dmabuf_mp.reports.files import ReportFile, write
from dmabuf_mp.reports.json_report import render
from tests.reports.sample import ALL


def entries(folder: Path) -> list[str]:
    """Return a folder's names, temporary files included."""
    return sorted(path.name for path in folder.iterdir())


def test_an_absent_target_is_made_with_the_umask_s_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(f"{tmp_path}/r", b"data")
    finally:
        os.umask(before)
    assert (tmp_path / "r").read_bytes() == b"data"
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o640
    assert entries(tmp_path) == ["r"]


def test_a_regular_target_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "r"
    target.write_bytes(b"old and longer")
    target.chmod(0o604)
    old = target.stat().st_ino
    write(str(target), b"new")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o604
    assert target.stat().st_ino != old
    assert entries(tmp_path) == ["r"]


def test_links_are_resolved_and_stay(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, target in (("link", "folder/r"), ("again", "link")):
        (tmp_path / name).symlink_to(target)
    for data in (b"made", b"replaced"):
        write(f"{tmp_path}/again", data)
        assert (tmp_path / "folder" / "r").read_bytes() == data
        assert (tmp_path / "again").is_symlink()
        assert (tmp_path / "link").is_symlink()
    assert entries(tmp_path / "folder") == ["r"]


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write(f"{tmp_path}/a", b"data")
    assert entries(tmp_path) == ["a"]


def test_a_device_is_written_in_place(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    for target in ("/dev/null", f"{tmp_path}/null"):
        write(target, b"data")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert entries(tmp_path) == ["null"]


def test_a_pipe_is_written_in_place_and_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    file = ReportFile("--json", str(fifo), render)
    file._next_s = 0.0
    file.update(ALL)  # would block for ever, or be read as a first document
    assert file.finish(ALL) is None
    reader.join()
    assert read == [render(ALL)]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert entries(tmp_path) == ["fifo"]


def test_what_stops_being_regular_is_not_renamed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "r"

    def write_all_and_meddle(fd: int, data: bytes) -> None:
        os.write(fd, data)
        os.mkfifo(target)

    monkeypatch.setattr(files, "write_all", write_all_and_meddle)
    with pytest.raises(FileExistsError, match="something else than a file"):
        write(str(target), b"data")
    assert stat.S_ISFIFO(target.stat().st_mode)
    assert entries(tmp_path) == ["r"]


def test_the_file_behind_stdout_is_not_cut_off(tmp_path: Path) -> None:
    target = tmp_path / "out"
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(target, os.O_WRONLY | os.O_CREAT, 0o666), 1)
        ok = files.is_stdout(str(target)) and not files.replaceable(str(target))
        write(str(target), b"report\n")
        os.write(1, b"after\n")
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert target.read_bytes() == b"report\nafter\n"


@pytest.mark.parametrize("failing", ["full", "folder", "missing", "folder_slash"])
def test_failures_leave_nothing_and_harm_nothing(tmp_path: Path, failing: str) -> None:
    (tmp_path / "folder").mkdir()
    target = {
        "full": "/dev/full",
        "folder": f"{tmp_path}/folder",
        "missing": f"{tmp_path}/none/r",
        "folder_slash": f"{tmp_path}/folder/",
    }[failing]
    with pytest.raises(OSError):
        write(target, b"data")
    assert entries(tmp_path) == ["folder"]
    assert entries(tmp_path / "folder") == []


def test_a_full_disk_leaves_the_old_report(tmp_path: Path) -> None:
    target = tmp_path / "r"
    target.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(str(target), b"x" * 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert target.read_bytes() == b"old"
    assert entries(tmp_path) == ["r"]


@pytest.mark.skipif(os.geteuid() != 0, reason="drops root's rights, which others do not have")
def test_a_read_only_file_is_not_replaced_though_its_folder_would_allow_it() -> None:
    folder = Path(tempfile.mkdtemp())  # the folders above tmp_path are root's alone
    try:
        folder.chmod(0o777)
        target, other = folder / "r", folder / "other"
        target.write_bytes(b"old")
        target.chmod(0o444)
        pid = os.fork()
        if pid == 0:
            os.setuid(65534)
            write(str(other), b"new")
            try:
                write(str(target), b"new")
            except PermissionError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert target.read_bytes() == b"old"
        assert entries(folder) == ["other", "r"]
    finally:
        shutil.rmtree(folder)


def test_a_growing_report_is_written_at_most_once_in_an_interval(tmp_path: Path) -> None:
    target = tmp_path / "r"
    file = ReportFile("--json", str(target), render)
    file.update(ALL)
    assert not target.exists()
    file._next_s = 0.0
    file.update(ALL)
    first = target.stat().st_ino
    file.update(ALL)
    assert target.stat().st_ino == first


def test_a_failure_while_growing_is_met_again_at_the_end(tmp_path: Path) -> None:
    file = ReportFile("--json", f"{tmp_path}/none/r", render)
    file._next_s = 0.0
    file.update(ALL)
    assert file.finish(ALL) == (
        f"--json {tmp_path}/none/r: the report could not be written: No such file or directory"
    )
    (tmp_path / "none").mkdir()
    assert file.finish(ALL) is None
