"""What limits an allocation: this machine's memory, and the cgroups around this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.backends.cpu import available
from dmabuf_mp.errors import Unsupported

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def write(root: Path, files: dict[str, object]) -> Path:
    """Make a folder look like a root with these files."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


def v2(path: str, limit: object, usage: int, inactive: int = 0) -> dict[str, object]:
    folder = f"sys/fs/cgroup{path}"
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": usage,
        f"{folder}/memory.stat": f"anon 5\ninactive_file {inactive}\nactive_file 9",
    }


def refusal(size_bytes: int, root: Path) -> str:
    with pytest.raises(Unsupported) as refused:
        available.ask(size_bytes, root=root)
    return str(refused.value)


def test_memavailable_is_the_limit_and_exactly_it_is_allowed(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1024 kB\nHugePages_Free: 0"})
    available.ask(MIB, root=root)
    expected = f"{MIB + 1} bytes are larger than MemAvailable, which leaves {MIB} bytes"
    assert refusal(MIB + 1, root) == expected


@pytest.mark.parametrize("path", ["", "/a", "/a/b"])
def test_the_tightest_cgroup_of_all_above_counts(tmp_path: Path, path: str) -> None:
    root = write(
        tmp_path, {"proc/self/cgroup": "0::/a/b", **v2("/a/b", "max", 5), **v2(path, 10 * MIB, 4 * MIB, MIB)}
    )
    available.ask(7 * MIB, root=root)
    assert f"{path}/memory.max, which leaves {7 * MIB} bytes" in refusal(7 * MIB + 1, root)


def test_version_one_groups_are_asked_as_well(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/a"
    files = {
        "proc/self/cgroup": "4:cpu,memory:/a\n1:name=systemd:/x\n0::/",
        f"{folder}/memory.limit_in_bytes": 10 * MIB,
        f"{folder}/memory.usage_in_bytes": 9 * MIB,
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {MIB}",
    }
    root = write(tmp_path, files)
    available.ask(2 * MIB, root=root)
    assert f"leaves {2 * MIB} bytes" in refusal(2 * MIB + 1, root)


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/", **v2("", MIB, 2 * MIB)})
    assert "leaves 0 bytes" in refusal(1, root)


def test_without_any_of_it_the_machines_memory_is_the_limit(tmp_path: Path) -> None:
    available.ask(MIB, root=tmp_path)
    assert "larger than this machine's memory" in refusal(2**50, tmp_path)
