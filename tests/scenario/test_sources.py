"""Where scenario files come from: every path gives scenarios or a located problem, and none blocks."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from dmabuf_mp.errors import ScenarioError
from dmabuf_mp.scenario import load, sources

GOOD = "producer: cpu\nconsumer: cpu\nsize: 4KiB\n"


def problem(path: str | Path) -> str:
    with pytest.raises(ScenarioError) as caught:
        load([path])
    (only,) = caught.value.problems
    assert only.file == str(path)
    return f"{only.line}:{only.column}: {only.message}"


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("# a comment\n" + GOOD)
    (scenario,) = load([file])
    assert (scenario.name, scenario.file, scenario.line) == ("one", str(file), 2)


def test_a_folder_is_read_in_order_with_its_folders_and_without_hidden_files(tmp_path: Path) -> None:
    for name in (
        "b.yml",
        "a.yaml",
        "sub/c.yaml",
        "x.yaml/d.yaml",
        ".hidden.yaml",
        ".git/e.yaml",
        "f.txt",
        "g.json",
    ):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(GOOD)
    assert [scenario.name for scenario in load([tmp_path])] == ["a", "b", "c", "d"]


def test_files_keep_the_order_they_are_given_in(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(GOOD)
    paths = [tmp_path / "b.yaml", tmp_path / "a.yaml", tmp_path / "b.yaml"]
    assert [scenario.name for scenario in load(paths)] == ["b", "a", "b"]


def test_all_problems_of_all_files_come_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("rouns: 1\n" + GOOD + "siz: 1\n")
    (tmp_path / "b.yaml").write_text(GOOD)
    with pytest.raises(ScenarioError) as caught:
        load([tmp_path / "none.yaml", tmp_path])
    assert [(Path(p.file).name, p.line) for p in caught.value.problems] == [
        ("none.yaml", 1),
        ("a.yaml", 1),
        ("a.yaml", 5),
    ]


def test_no_such_file(tmp_path: Path) -> None:
    assert problem(tmp_path / "none.yaml") == "1:1: cannot be read: No such file or directory"


def test_a_folder_without_scenarios(tmp_path: Path) -> None:
    folder = tmp_path / "x.yaml"
    folder.mkdir()
    assert problem(folder).startswith("1:1: no scenarios in this folder")


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_a_file_without_scenarios(tmp_path: Path, text: str) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text(text)
    assert problem(file) == "1:1: no scenario in this file: it is empty"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    file = tmp_path / "secret.yaml"
    file.write_text(GOOD)
    file.chmod(0)
    assert problem(file) == "1:1: cannot be read: Permission denied"


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "latin1.yaml"
    file.write_bytes(GOOD.encode() + "name: grün\n".encode("latin-1"))
    assert problem(file) == "4:9: not UTF-8 text: save the file as UTF-8"


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert len(load([file])) == 1


def test_a_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"\x7fELF\x02\x01\x01\x00")
    assert problem(file) == "1:1: not valid YAML: character U+007F is not allowed; is this a text file?"


def test_a_large_file(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_text(GOOD + "#" * sources.MAX_BYTES)
    assert problem(file) == "1:1: larger than 1 MiB: is this a scenario file?"
    with file.open("r+b") as opened:
        opened.truncate(2**40)
    assert problem(file) == "1:1: larger than 1 MiB: is this a scenario file?"


def test_a_path_that_no_file_can_have() -> None:
    assert problem("a\0b.yaml") == "1:1: cannot be read: embedded null byte"
    assert problem("n" * 5000).startswith("1:1: cannot be read: File name too long")
    with pytest.raises(ScenarioError, match=re.escape("'':1:1: no name: expected a file or a folder")):
        load([""])


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_not_read(device: str) -> None:
    assert problem(device).startswith("1:1: not a file: ")


def test_a_fifo_without_a_writer_does_not_block(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    assert problem(fifo) == "1:1: no scenario in this file: it is empty"
    with pytest.raises(ScenarioError, match=r"fifo.yaml:1:1: no scenario in this file"):
        load([tmp_path])


def test_a_pipe_is_read_to_its_end() -> None:
    """As in `dmabuf-mp run <(command)`."""
    reader, writer = os.pipe()

    def write() -> None:
        for line in GOOD.splitlines(keepends=True):
            os.write(writer, line.encode())
        os.close(writer)

    thread = threading.Thread(target=write)
    try:
        path = f"/dev/fd/{reader}"
        thread.start()
        (scenario,) = load([path])
        assert scenario.size_bytes == 4096
    finally:
        thread.join()
        os.close(reader)


def test_a_pipe_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PIPE_PATIENCE_S", 0.05)
    reader, writer = os.pipe()
    try:
        assert problem(f"/dev/fd/{reader}").startswith("1:1: this pipe has not ended")
    finally:
        os.close(reader)
        os.close(writer)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    (scenario,) = load(["-"])
    assert (scenario.name, scenario.file) == ("stdin", "-")


def test_standard_input_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    with pytest.raises(ScenarioError, match="standard input is there once: name it once"):
        load(["-", "-"])


def test_standard_input_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/zero").open() as zero:
        monkeypatch.setattr(sys, "stdin", zero)
        assert problem("-") == "1:1: larger than 1 MiB: is this a scenario file?"


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert problem("-") == "1:1: standard input is closed"


def test_a_file_whose_name_is_no_name(tmp_path: Path) -> None:
    file = tmp_path / "two\nlines.yaml"
    file.write_text(GOOD)
    assert "a name is one printable line" in problem(file)
    file.write_text("name: named\n" + GOOD)
    assert load([file])[0].name == "named"
