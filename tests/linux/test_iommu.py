"""What the kernel tells of its IOMMUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.linux import iommu

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("units", "groups", "cmdline", "says"),
    [
        (
            ("dmar1", "dmar0"),
            3,
            "ro intel_iommu=on iommu=pt quiet\n",
            "dmar0, dmar1 with 3 groups (intel_iommu=on iommu=pt)",
        ),
        ((), 0, "quiet root=/dev/iommu", "none in use"),
        ((), 0, "iommu=off", "none in use (iommu=off)"),
        ((), 2, "", "of unknown kind with 2 groups"),
    ],
)
def test_units_groups_and_what_was_asked_for(
    units: tuple[str, ...], groups: int, cmdline: str, says: str, tmp_path: Path
) -> None:
    for folder, names in (("class/iommu", units), ("kernel/iommu_groups", tuple(map(str, range(groups))))):
        (tmp_path / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / folder / name).mkdir()
    (tmp_path / "cmdline").write_text(cmdline)
    assert iommu.describe(tmp_path, tmp_path / "cmdline") == says


def test_where_the_kernel_does_not_tell_nothing_is_said(tmp_path: Path) -> None:
    assert iommu.describe(tmp_path, tmp_path / "cmdline") is None
    (tmp_path / "class/iommu").mkdir(parents=True)
    (tmp_path / "kernel/iommu_groups").mkdir(parents=True)
    assert iommu.describe(tmp_path, tmp_path / "cmdline") == "none in use"
