"""Which device a selector names: pure, and without a driver."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.backends.cuda.paths import PATHS, selector_error
from dmabuf_mp.errors import Unsupported, UsageError
from dmabuf_mp.model import DeviceInfo

if TYPE_CHECKING:
    from dmabuf_mp.model import Json

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
    assert PATHS.resolve(selector, DEVICES) is DEVICES[expected]


@pytest.mark.parametrize(
    "selector", ["cuda:4", "cuda:GPU-b", "cuda:MIG-d", "cuda:3c:00", "cuda:0003:d8:00.0", "cuda:d8:00.1"]
)
def test_a_device_that_is_not_there_is_unsupported_and_all_are_listed(selector: str) -> None:
    with pytest.raises(Unsupported) as raised:
        PATHS.resolve(selector, DEVICES)
    assert all(f"{device.selector} ({device.uuid})" in str(raised.value) for device in DEVICES)
    with pytest.raises(Unsupported, match="visible: none"):
        PATHS.resolve(selector, ())


@pytest.mark.parametrize("selector", ["cuda:GPU-aaaa2", "cuda:d8:00.0", "cuda:d8:00"])
def test_what_fits_two_devices_names_both(selector: str) -> None:
    with pytest.raises(UsageError, match=r"fits several devices: cuda:1 \(GPU-.*\), cuda:2 \(GPU-.*-1\)$"):
        PATHS.resolve(selector, DEVICES)


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


def gpu(index: int, exports: int | None, imports: int | None) -> DeviceInfo:
    details: dict[str, Json] = {"host_alloc_dma_buf_supported": exports, "dma_buf_supported": imports}
    return DeviceInfo(f"cuda:{index}", details=details)


@pytest.mark.parametrize(
    ("producer", "consumer", "expected"),
    [
        (gpu(0, 1, 0), gpu(1, 0, 1), True),
        (gpu(0, 0, 1), gpu(1, 1, 1), False),
        (gpu(0, None, 1), gpu(1, 1, 1), False),
        (gpu(0, 1, 1), gpu(1, 1, 0), False),
        (gpu(0, 1, 1), gpu(1, 1, None), False),
        (gpu(0, 1, 0), gpu(0, 1, 0), True),  # on one GPU the sample asks the exporter alone
        (gpu(0, 1, 0), DeviceInfo("cpu"), True),
    ],
)
def test_pinned_memory_is_searched_for_as_the_sample_does(
    producer: DeviceInfo, consumer: DeviceInfo, expected: bool
) -> None:
    assert PATHS.qualifies("pinned", producer, consumer) is expected
    assert PATHS.qualifies("device", producer, consumer) is True


def test_choosing_a_device_imports_nothing_of_cuda() -> None:
    code = (
        "import sys; from dmabuf_mp import backends; backends.paths();"
        " import dmabuf_mp.backends.cuda.selectors;"
        " print([name for name in sys.modules if name.split('.')[0] in ('cuda', 'numpy')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
