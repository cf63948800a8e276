"""The mutants: each is one mistake in code that a verdict rests on, with the tests that have to find it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake: in `file`, `old` (which must be there once) becomes `new`; `tests` are given to pytest."""

    name: str
    file: str
    old: str
    new: str
    tests: str


BLOCKS = "tests/backends/cpu/test_blocks.py"
DEVICE = "tests/backends/cpu/test_device.py"
IMPORTER = "tests/backends/cpu/test_importer.py"
MEMORIES = "tests/backends/cpu/test_memories.py"
CONTEXT = "tests/test_context.py"
DIALOGUE = "tests/test_dialogue.py"
EVIDENCE = "tests/test_evidence.py"
STRIKING = "tests/faults/test_striking.py"
WIRE = "tests/test_wire.py"
MODEL = "tests/test_model.py"
JUDGE = "tests/orchestrator/test_judge.py"
FAULTS = "tests/orchestrator/test_faults.py"
RUNS = "tests/orchestrator/test_run.py"
SURROUNDINGS = "tests/orchestrator/test_surroundings.py"

MUTANTS = (
    # The check of the data.
    Mutant(
        "the last word of a block is not compared",
        "backends/cpu/blocks.py",
        "if due != memory.data:",
        "if due[:-4] != memory.data.cast('B')[:-4]:",
        BLOCKS,
    ),
    Mutant(
        "the tail is not compared",
        "backends/cpu/blocks.py",
        "    if tail := _tail(view.size, pattern, t):\n        yield",
        "    if tail := b'':\n        yield",
        f"{BLOCKS} {CONTEXT}",
    ),
    Mutant(
        "what differs is not counted",
        "backends/cpu/blocks.py",
        "matched, mismatched = matched - count, mismatched + count",
        "pass",
        BLOCKS,
    ),
    Mutant(
        "a difference that has gone counts as none",
        "backends/cpu/blocks.py",
        "return max(1, int(np.count_nonzero(differ)))",
        "return (int(np.count_nonzero(differ)))",
        BLOCKS,
    ),
    Mutant(
        "every block is compared with the first",
        "backends/cpu/blocks.py",
        "        words.write(block, np.frombuffer(due, WORD))",
        "        words.write(0, np.frombuffer(due, WORD))",
        BLOCKS,
    ),
    Mutant(
        "a fill leaves out the tail",
        "backends/cpu/blocks.py",
        "    view[view.size - len(tail) :] = np.frombuffer(tail, np.uint8)",
        "    return",
        BLOCKS,
    ),
    Mutant(
        "new memory is not poisoned",
        "backends/cpu/memories.py",
        "view.fill(poison(size_bytes))",
        "pass",
        f"{MEMORIES} {FAULTS}",
    ),
    Mutant(
        "memory that nobody wrote can match",
        "patterns.py",
        "    return 0xFF if size_bytes >= 8 else 0",
        "    return 0xFF",
        "tests/test_patterns.py",
    ),
    Mutant(
        "a check of any buffer counts",
        "context/core.py",
        "        if self._incoming is not None and buffer is not self._received:",
        "        if False:",
        CONTEXT,
    ),
    Mutant(
        "a consumer may write what it is to check",
        "context/core.py",
        "            if self._round not in self.findings.checked_rounds:",
        "            if False:",
        CONTEXT,
    ),
    Mutant(
        "a worker that is ending is taken out of the pool",
        "orchestrator/pool.py",
        "if not worker.reap() and not worker.control.closed:",
        "if not worker.reap():",
        "tests/orchestrator/test_pool.py",
    ),
    # The pattern.
    Mutant(
        "the round is ignored",
        "patterns.py",
        "    return 2 * round_ + write_back",
        "    return int(write_back)",
        f"tests/test_patterns.py {STRIKING}",
    ),
    Mutant(
        "a write-back looks like the fill",
        "patterns.py",
        "    return 2 * round_ + write_back",
        "    return 2 * round_",
        f"tests/test_patterns.py {STRIKING}",
    ),
    Mutant(
        "kappa is ignored",
        "patterns.py",
        '    return zlib.crc32(f"{run_seed}:{scenario}:{repeat}".encode())',
        "    return 0",
        "tests/test_patterns.py tests/test_plan.py",
    ),
    Mutant(
        "kappa forgets the scenario",
        "patterns.py",
        'f"{run_seed}:{scenario}:{repeat}"',
        'f"{run_seed}:{repeat}"',
        "tests/test_patterns.py tests/test_plan.py",
    ),
    Mutant(
        "a random word may be zero",
        "patterns.py",
        "    return x or 1",
        "    return x",
        "tests/test_patterns.py",
    ),
    Mutant(
        "a tail byte may be zero",
        "patterns.py",
        "return 1 + word(pattern, words + j, t) % 255",
        "return word(pattern, words + j, t) % 256",
        f"tests/test_patterns.py {BLOCKS}",
    ),
    # What is told of wrong data, and of faults.
    Mutant(
        "a second read is not compared with the first",
        "evidence.py",
        "np.array_equal(got, again)",
        "True",
        EVIDENCE,
    ),
    Mutant(
        "what was counted is not held against what is seen",
        "evidence.py",
        "all_seen = part.stop < size_bytes or wrong.size == counts.mismatched",
        "all_seen = True",
        EVIDENCE,
    ),
    Mutant(
        "a fault that never struck is taken for one that did",
        "orchestrator/scenario_run.py",
        "if missed and Outcome.PASSED in (outcome, observed):",
        "if False:",
        "tests/faults/test_missed.py",
    ),
    Mutant(
        "a fault that another has left no time for is none the less missed",
        "orchestrator/playing.py",
        "if not another_struck or (",
        "if True or (",
        "tests/faults/test_missed.py",
    ),
    # What a role has to have done.
    Mutant(
        "the number of positions is not looked at",
        "context/core.py",
        "if counts.matched + counts.mismatched != due:",
        "if False:",
        CONTEXT,
    ),
    Mutant(
        "rounds that were not checked are not missed",
        "context/core.py",
        "            if missing:",
        "            if False:",
        f"{CONTEXT} {FAULTS}",
    ),
    Mutant(
        "a mismatch is not told of at the end",
        "context/core.py",
        "        if self.findings.mismatches:\n            raise MismatchFound",
        "        if False:\n            raise MismatchFound",
        f"{CONTEXT} {FAULTS}",
    ),
    Mutant(
        "what was written back is not told of at the end",
        "context/core.py",
        "        if self.findings.write_back_mismatches:",
        "        if False:",
        f"{CONTEXT} {STRIKING}",
    ),
    Mutant(
        "what was written back is not checked",
        "context/producing.py",
        "        if not any(peer.writes for peer in self._part.downstream):",
        "        if self._part.downstream:",
        f"{CONTEXT} {STRIKING}",
    ),
    Mutant(
        "a producer need not share",
        "context/core.py",
        "        if not self._shared:",
        "        if False:",
        f"{CONTEXT} {FAULTS}",
    ),
    Mutant(
        "an ack needs no check",
        "context/consuming.py",
        "if self._last is None or self._last.round != round_:",
        "if self._last is None:",
        f"{CONTEXT} {FAULTS}",
    ),
    Mutant(
        "only the last round's mismatches count",
        "context/core.py",
        "findings.mismatches = (findings.mismatches or 0) + counts.mismatched",
        "findings.mismatches = counts.mismatched",
        f"{CONTEXT} {STRIKING}",
    ),
    Mutant(
        "finish() is skipped", "player.py", "                context.finish()\n", "", f"{FAULTS} {STRIKING}"
    ),
    Mutant(
        "the size that the producer says is believed",
        "context/consuming.py",
        "        if offer.size_bytes != self.size_bytes:",
        "        if False:",
        f"{CONTEXT} {DIALOGUE}",
    ),
    Mutant(
        "the offset that the producer says is believed",
        "context/consuming.py",
        "if offer.offset_bytes % 16 or offer.offset_bytes + self.size_bytes > offer.allocated_bytes:",
        "if False:",
        f"{CONTEXT} {DIALOGUE}",
    ),
    # The buffer that came.
    Mutant(
        "an unsealed memfd is taken",
        "backends/cpu/importer.py",
        "if not seals & memfd.F_SEAL_SHRINK:",
        "if False:",
        IMPORTER,
    ),
    Mutant(
        "any fd is taken for a memfd",
        "backends/cpu/importer.py",
        "    if seals is None:",
        "    if False:",
        IMPORTER,
    ),
    Mutant(
        "the buffer's real size is not looked at",
        "backends/cpu/importer.py",
        "if real_bytes != round_up(offer.allocated_bytes):",
        "if False:",
        IMPORTER,
    ),
    Mutant(
        "a reader may write",
        "backends/cpu/mapped.py",
        "read_only = not writable or ",
        "read_only = ",
        f"{IMPORTER} tests/test_selftest.py",
    ),
    # The dialogue and the wire.
    Mutant(
        "an ack of another round is taken", "dialogue.py", "    if got != round_:", "    if False:", DIALOGUE
    ),
    Mutant(
        "another round's 'filled' is taken",
        "dialogue.py",
        "if frame.payload != _ROUND.pack(round_):",
        "if False:",
        DIALOGUE,
    ),
    Mutant(
        "another handle than agreed on is taken",
        "dialogue.py",
        "    if offer.handle != wanted.handle:",
        "    if False:",
        DIALOGUE,
    ),
    Mutant(
        "the producer frees without waiting",
        "dialogue.py",
        "            channel.expect(Kind.RELEASED)",
        "            pass",
        f"{DIALOGUE} {CONTEXT}",
    ),
    Mutant(
        "sequence numbers are not checked",
        "wire.py",
        "        if sequence != self._received % _SEQUENCES:",
        "        if False:",
        WIRE,
    ),
    Mutant(
        "the version is not checked", "wire.py", "        if version != VERSION:", "        if False:", WIRE
    ),
    Mutant(
        "fds are not counted",
        "wire.py",
        "if kind in due and (len(frame.fds) == (kind is Kind.OFFER) or kind in _ANY_NUMBER_OF_FDS):",
        "if kind in due:",
        WIRE,
    ),
    Mutant("lost fds are not noticed", "wire.py", "        if flags & _CTRUNC:", "        if False:", WIRE),
    Mutant("a cut frame is not noticed", "wire.py", "        if flags & _TRUNC:", "        if False:", WIRE),
    Mutant(
        "fds come without close-on-exec",
        "wire.py",
        "        flags = _CLOEXEC\n",
        "        flags = 0\n",
        WIRE,
    ),
    Mutant(
        "a frame that is not due is taken",
        "wire.py",
        "        if kind in due and (",
        "        if (",
        f"{WIRE} {DIALOGUE}",
    ),
    # The verdict.
    Mutant(
        "a skip is a pass",
        "model.py",
        "        return observed\n    if observed is expect:",
        "        return Outcome.PASSED\n    if observed is expect:",
        MODEL,
    ),
    Mutant(
        "what was not expected is a pass",
        "model.py",
        "    return Outcome.FAILED if observed is Outcome.PASSED else observed",
        "    return Outcome.PASSED",
        MODEL,
    ),
    Mutant(
        "the exit code ignores failures",
        "model.py",
        "bad = BAD | {Outcome.SKIPPED} if strict else BAD",
        "bad = frozenset({Outcome.SKIPPED} if strict else ())",
        MODEL,
    ),
    Mutant(
        "nothing run is a success",
        "model.py",
        "    return 0 if outcomes and skips_ok else 77",
        "    return 0 if skips_ok or not outcomes else 77",
        MODEL,
    ),
    Mutant(
        "a lost report is a success",
        "model.py",
        "if report_lost or bad.intersection",
        "if bad.intersection",
        MODEL,
    ),
    Mutant(
        "the collateral is judged like the cause",
        "orchestrator/judge.py",
        "causes = [end for end in ends if not _is_collateral(end, by_label)] or list(ends)",
        "causes = list(ends)",
        f"{JUDGE} {FAULTS}",
    ),
    Mutant(
        "the mildest end is the scenario's",
        "orchestrator/judge.py",
        "worst = min(causes,",
        "worst = max(causes,",
        JUDGE,
    ),
    Mutant(
        "who sent what may not be sent is not charged",
        "orchestrator/judge.py",
        "    for end in ends:\n        charge = charges.get(end.label)",
        "    for end in ends:\n        charge = None",
        JUDGE,
    ),
    Mutant(
        "who waits is blamed like who hangs",
        "orchestrator/judge.py",
        "    return frozenset(roots or waiting)",
        "    return frozenset(waiting)",
        f"{JUDGE} {FAULTS}",
    ),
    Mutant(
        "no end at all is a pass",
        "orchestrator/judge.py",
        'return Outcome.ERROR, "no_check", "nothing was run"',
        'return Outcome.PASSED, "ok", ""',
        JUDGE,
    ),
    # Processes.
    Mutant(
        "an exit without a word is no crash",
        "orchestrator/scenario_run.py",
        'ends[label] = End(label, Outcome.CRASHED, "exited", reason)',
        'ends[label] = End(label, Outcome.PASSED, "ok", "")',
        FAULTS,
    ),
    Mutant(
        "a crash after the result is overlooked",
        "orchestrator/scenario_run.py",
        '        if how.code or how.signal not in (None, "SIGTERM", "SIGKILL"):  # those are ours',
        "        if False:",
        FAULTS,
    ),
    Mutant(
        "the deadline is ignored",
        "orchestrator/scenario_run.py",
        "return self._all_ready + self._planned.deadline_s",
        "return self._all_ready + 1e6",
        f"{FAULTS} -k hangs",
    ),
    Mutant(
        "a worker that crashed is used again",
        "orchestrator/scenario_run.py",
        "            if not good or not self._pool.keep(",
        "            if not self._pool.keep(",
        f"{RUNS} {FAULTS}",
    ),
    Mutant(
        "nothing is reaped",
        "orchestrator/handle.py",
        "            pid, status = os.waitpid(self.pid, os.WNOHANG)",
        "            pid, status = 0, 0",
        f"{FAULTS} -k passes_and_then",
    ),
    Mutant(
        "SIGKILL is never sent",
        "orchestrator/loop.py",
        "                worker.signal(signal.SIGKILL)\n            self._wait_gone(ending, KILL_GRACE_S)",
        "                pass\n            self._wait_gone(ending, KILL_GRACE_S)",
        f"{FAULTS} -k hangs",
    ),
    Mutant(
        "workers outlive their orchestrator",
        "worker.py",
        "    process.prctl(process.PR_SET_PDEATHSIG, signal.SIGKILL)\n",
        "",
        f"{SURROUNDINGS} -k outlives",
    ),
    Mutant(
        "what a worker leaves behind is left",
        "orchestrator/loop.py",
        "                    os.kill(pid, signal.SIGKILL)\n                    while",
        "                    while",
        "tests/orchestrator/test_output.py -k 'left or behind or daemon'",
    ),
    Mutant(
        "a stop of the orchestrator counts",
        "orchestrator/clock.py",
        "            self._credit_s += stalled",
        "            pass",
        SURROUNDINGS,
    ),
    Mutant(
        "an unknown status is a zero",
        "orchestrator/handle.py",
        "            self.exit = Exit()  #",
        "            self.exit = Exit(0)  #",
        f"{SURROUNDINGS} -k someone_else",
    ),
    Mutant(
        "a leak in a worker is overlooked",
        "ledger.py",
        "if before.fds.get(number) != what]",
        "if False]",
        "tests/test_ledger.py tests/orchestrator/test_output.py",
    ),
    # The self-test.
    Mutant(
        "the self-test believes any outcome",
        "selftest.py",
        "    if report.observed is not case.kind.outcome:",
        "    if False:",
        "tests/test_selftest.py",
    ),
    Mutant(
        "the self-test believes any culprit",
        "selftest.py",
        "    if not set(carriers) & set(case.blamed):",
        "    if False:",
        "tests/test_selftest.py",
    ),
    Mutant(
        "the self-test blames the innocent",
        "selftest.py",
        "    if innocent := ends.keys() - set(case.blamed):",
        "    if innocent := ():",
        "tests/test_selftest.py",
    ),
)
