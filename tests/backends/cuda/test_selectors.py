"""Which device a selector names: pure, and without a driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dmabuf_mp.backends.cuda.paths import selector_error
from dmabuf_mp.backends.cuda.selectors import resolve
from dmabuf_mp.errors import Unsupported, UsageError
from dmabuf_mp.model import DeviceInfo

DEVICES = (
    DeviceInfo("cuda:0", uuid="GPU-aaaa1111-0000", details={"pci_id": "0000:3b:00.0"}),
    DeviceInfo("cuda:1", uuid="GPU-aaaa2222-0000", details={"pci_id": "0000:d8:00.0"}),
    DeviceInfo("cuda:2", uuid="GPU-aaaa2222-0000-1", details={"pci_id": "00000001:d8:00.0"}),
    DeviceInfo("cuda:3", uuid="MIG-cccc", details={"pci_id": "00000002:10:00.0"}),
)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("cuda:0", 0),
        ("cuda:3", 3),
        ("cuda:GPU-aaaa1", 0),
        ("cuda:gpu-AAAA1111-0000", 0),
        ("cuda:GPU-aaaa2222-0000", 1),  # whole, although another begins with it
        ("cuda:GPU-aaaa2222-0000-1", 2),
        ("cuda:MIG-cccc", 3),
        ("cuda:3b:00.0", 0),
        ("cuda:3B:00", 0),
        ("cuda:0000:d8:00.0", 1),
        ("cuda:00000001:D8:00.0", 2),
        ("cuda:0001:d8:00", 2),
        ("cuda:10:00", 3),
    ],
)
def test_a_selector_names_one_device(selector: str, expected: int) -> None:
    assert resolve(selector, DEVICES) is DEVICES[expected]


@pytest.mark.parametrize(
    "selector", ["cuda:4", "cuda:GPU-b", "cuda:MIG-d", "cuda:3c:00", "cuda:0003:d8:00.0", "cuda:d8:00.1"]
)
def test_a_device_that_is_not_there_is_unsupported_and_all_are_listed(selector: str) -> None:
    with pytest.raises(Unsupported) as raised:
        resolve(selector, DEVICES)
    assert all(f"{device.selector} ({device.uuid})" in str(raised.value) for device in DEVICES)
    with pytest.raises(Unsupported, match="visible: none"):
        resolve(selector, ())


@pytest.mark.parametrize("selector", ["cuda:GPU-aaaa2", "cuda:d8:00.0", "cuda:d8:00"])
def test_what_fits_two_devices_names_both(selector: str) -> None:
    with pytest.raises(UsageError, match=r"fits several devices: cuda:1 \(GPU-.*\), cuda:2 \(GPU-.*-1\)$"):
        resolve(selector, DEVICES)


@pytest.mark.parametrize(
    "selector", ["cuda:any", "cuda:other", "cuda:*", "cuda:0", "cuda:GPU-ab", "cuda:00000000:3b:00.0"]
)
def test_a_selector_is_written_so(selector: str) -> None:
    assert selector_error(selector) is None


@pytest.mark.parametrize(
    "selector", ["cuda", "cuda:", "cuda:-1", "cuda:01", "cuda:GPU-", "cuda:gpu", "cuda: 0", "cuda:3b"]
)
def test_anything_else_is_told_what_would_be_right(selector: str) -> None:
    said = selector_error(selector)
    assert said is not None and "expected cuda:N" in said


def test_choosing_a_device_imports_nothing_of_cuda() -> None:
    code = (
        "import sys; from dmabuf_mp import backends; backends.paths();"
        " import dmabuf_mp.backends.cuda.selectors;"
        " print([name for name in sys.modules if name.split('.')[0] in ('cuda', 'numpy')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
