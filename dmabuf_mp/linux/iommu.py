"""/sys/class/iommu and /sys/kernel/iommu_groups: whether devices' accesses to memory are translated."""

from __future__ import annotations

from pathlib import Path

SYS = Path("/sys")
CMDLINE = Path("/proc/cmdline")


def describe(sys: Path = SYS, cmdline: Path = CMDLINE) -> str | None:
    """Say which IOMMUs the kernel uses, on how many groups, and what its command line asks of them.

    `none in use` where it uses none; None where it does not tell.
    """
    try:
        units = sorted(path.name for path in (sys / "class/iommu").iterdir())
        groups = len(list((sys / "kernel/iommu_groups").iterdir()))
    except OSError:
        return None
    try:
        asked = [word for word in cmdline.read_text().split() if "iommu" in word.partition("=")[0]]
    except OSError:
        asked = []
    use = (
        f"{', '.join(units) or 'of unknown kind'} with {groups} groups" if units or groups else "none in use"
    )
    return use + (f" ({' '.join(asked)})" if asked else "")
