"""The mutants of a GPU's check, host and kernels, and of what is told of a mismatch."""

from __future__ import annotations

from tests.mutants.table import Mutant

ON_DOUBLE = "tests/backends/cuda/test_on_double.py"
KERNELS = "tests/backends/cuda/test_kernels.py -k 'not ptx'"  # whose hash any change of the source breaks
MISMATCH = "tests/test_mismatch.py"
EVIDENCE = "tests/test_evidence.py"
TOLD = "tests/reports/test_mismatches.py"
JSON = "tests/reports"

MUTANTS = (
    # The check on a GPU: the host's side of it.
    Mutant(
        "a GPU's check is not told of the tail",
        "backends/cuda/device.py",
        "arguments = (*_arguments(buffer, pattern, t), int(self._counters))",
        "a = _arguments(buffer, pattern, t)\n        arguments = (*a[:2], 0, *a[3:], int(self._counters))",
        ON_DOUBLE,
    ),
    Mutant(
        "a GPU's check leaves out the last word",
        "backends/cuda/device.py",
        "arguments = (*_arguments(buffer, pattern, t), int(self._counters))",
        "a = _arguments(buffer, pattern, t)\n        arguments = a[0], a[1] - 1, *a[2:], int(self._counters)",
        ON_DOUBLE,
    ),
    Mutant(
        "a GPU's kernels ignore the round",
        "backends/cuda/device.py",
        "pattern.seed & patterns.M, pattern.kappa, t)",
        "pattern.seed & patterns.M, pattern.kappa, 0)",
        ON_DOUBLE,
    ),
    Mutant(
        "a GPU's kernels ignore kappa",
        "backends/cuda/device.py",
        "pattern.seed & patterns.M, pattern.kappa, t)",
        "pattern.seed & patterns.M, 0, t)",
        ON_DOUBLE,
    ),
    Mutant(
        "what differs on a GPU is not counted",
        "backends/cuda/device.py",
        "return CheckCounts(matched, mismatched, first if mismatched else None)",
        "return CheckCounts(matched + mismatched, 0, None)",
        ON_DOUBLE,
    ),
    Mutant(
        "a GPU's counters are not set back",
        "backends/cuda/device.py",
        "        counters[:] = list(_NOTHING_FOUND)\n",
        "",
        ON_DOUBLE,
    ),
    Mutant(
        "a GPU's memory is not poisoned",
        "backends/cuda/device.py",
        "poison = patterns.poison(size_bytes)",
        "poison = 0",
        ON_DOUBLE,
    ),
    Mutant(
        "a dma-buf's real size is not looked at by a GPU",
        "backends/cuda/importers.py",
        "if (size := dmabuf.size(fd)) != offer.allocated_bytes:",
        "if (size := dmabuf.size(fd)) is None:",
        ON_DOUBLE,
    ),
    Mutant(
        "a GPU takes any fd for a dma-buf",
        "backends/cuda/importers.py",
        "if not dmabuf.is_dmabuf(fd):",
        "if False:",
        ON_DOUBLE,
    ),
    Mutant(
        "a GPU takes any fd for a CUDA handle",
        "backends/cuda/importers.py",
        'if found is not None and not found.startswith("/dev/nvidia"):',
        "if False:",
        ON_DOUBLE,
    ),
    Mutant(
        "a GPU imports a range outside of the memory",
        "backends/cuda/importers.py",
        " or end_bytes > offer.allocated_bytes:",
        ":",
        ON_DOUBLE,
    ),
    # The check on a GPU: the kernels.
    Mutant(
        "a kernel compares one byte less of a tile's vectors",
        "backends/cuda/kernels.cu",
        "| (got[j].w ^ e.w);",
        "| ((got[j].w ^ e.w) & 0xffffff);",
        KERNELS,
    ),
    Mutant(
        "a kernel compares one byte less of a word",
        "backends/cuda/kernels.cu",
        "    if (got == expected) {",
        "    if (((got ^ expected) & 0xffffff) == 0) {",
        KERNELS,
    ),
    Mutant(
        "a kernel takes the tail for right",
        "backends/cuda/kernels.cu",
        "compare(found, (unsigned char)data[offset], tail_byte(",
        "compare(found, tail_byte(word<KIND>(p, words + threadIdx.x)), tail_byte(",
        KERNELS,
    ),
    Mutant(
        "a kernel takes the words after the last vector for right",
        "backends/cuda/kernels.cu",
        "compare(found, ((const u32 *)data)[i], word<KIND>(p, i), 4 * i);",
        "++found.matched;",
        KERNELS,
    ),
    Mutant(
        "a kernel ignores the round of a ramp",
        "backends/cuda/kernels.cu",
        "fold(0x9E3779B1ull * t)",
        "fold(0x9E3779B1ull * 0)",
        KERNELS,
    ),
    Mutant(
        "a kernel ignores the round of random words",
        "backends/cuda/kernels.cu",
        "mix(t + kappa)}",
        "mix(kappa)}",
        KERNELS,
    ),
    Mutant(
        "a kernel drops the count of one vector in a tile",
        "backends/cuda/kernels.cu",
        "compare(found, got[j], e, v + j * BLOCK);",
        "found.matched += 4;",
        KERNELS,
    ),
    Mutant(
        "a kernel drops the count of what differs",
        "backends/cuda/kernels.cu",
        "atomicAdd(counters + 1, found.mismatched);",
        "atomicAdd(counters, found.mismatched);",
        KERNELS,
    ),
    Mutant(
        "a kernel names some mismatch for the first",
        "backends/cuda/kernels.cu",
        "        found.first = min(found.first, offset);",
        "        found.first = offset;",
        KERNELS,
    ),
    # What is told of a mismatch.
    Mutant(
        "what came and what was due change places",
        "mismatch.py",
        "return Mismatch(offset_bytes, offset_bytes // PAGE_BYTES, expected, got, kind, round_)",
        "return Mismatch(offset_bytes, offset_bytes // PAGE_BYTES, got, expected, kind, round_)",
        MISMATCH,
    ),
    Mutant(
        "the page of a mismatch is its byte",
        "mismatch.py",
        "return Mismatch(offset_bytes, offset_bytes // PAGE_BYTES, expected, got, kind, round_)",
        "return Mismatch(offset_bytes, offset_bytes, expected, got, kind, round_)",
        MISMATCH,
    ),
    Mutant(
        "the round of a mismatch is dropped",
        "mismatch.py",
        "return Mismatch(offset_bytes, offset_bytes // PAGE_BYTES, expected, got, kind, round_)",
        "return Mismatch(offset_bytes, offset_bytes // PAGE_BYTES, expected, got, kind, 0)",
        f"{MISMATCH} tests/faults/test_striking.py",
    ),
    Mutant(
        "zeros in a part are zeros everywhere",
        "mismatch.py",
        'return "all_zero" if everywhere else "zeros"',
        'return "all_zero"',
        MISMATCH,
    ),
    Mutant(
        "another round's data is not known again",
        "mismatch.py",
        "if step := self.other_step(wrong):",
        "if step := None:",
        MISMATCH,
    ),
    Mutant(
        "a shift is told by its length alone",
        "mismatch.py",
        "(place - start) * 4 - found",
        "abs((place - start) * 4 - found)",
        MISMATCH,
    ),
    Mutant(
        "a flipped byte is a flipped bit", "mismatch.py", ".bit_count() == 1", ".bit_count() >= 1", MISMATCH
    ),
    Mutant(
        "the tail is looked at as words", "mismatch.py", 'kind = "tail_only"', 'kind = "corrupt"', MISMATCH
    ),
    Mutant(
        "two runs next but one are one", "evidence.py", "np.diff(wrong) > 1)", "np.diff(wrong) > 2)", EVIDENCE
    ),
    Mutant(
        "the shortest run is the longest",
        "evidence.py",
        "run(int(np.argmax(lasts - firsts)))",
        "run(int(np.argmin(lasts - firsts)))",
        EVIDENCE,
    ),
    Mutant(
        "the tail of a look is left out",
        "evidence.py",
        "np.concatenate((words, data[middle:] != self._due[middle:]))",
        "words",
        EVIDENCE,
    ),
    Mutant(
        "the count is dropped from the JSON report",
        "reports/json_report.py",
        '"mismatches": link.mismatches,',
        '"mismatches": 0,',
        JSON,
    ),
    Mutant(
        "both sides of a dump are the expected one",
        "reports/mismatches.py",
        "bytes.fromhex(dump.expected), bytes.fromhex(dump.got)",
        "bytes.fromhex(dump.expected), bytes.fromhex(dump.expected)",
        TOLD,
    ),
    Mutant(
        "the first mismatch is told without its class",
        "reports/mismatches.py",
        ", got {at.got} ({at.kind})",
        ", got {at.got}",
        JSON,
    ),
)
