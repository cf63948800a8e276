"""One part while it is being played, and what can be said of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from dmabuf_mp.linux import process
from dmabuf_mp.model import Outcome, WorkerReport
from dmabuf_mp.orchestrator.judge import End

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dmabuf_mp.assignment import Part
    from dmabuf_mp.board import Board
    from dmabuf_mp.model import Json, Scenario
    from dmabuf_mp.orchestrator.capture import Capture
    from dmabuf_mp.orchestrator.handle import Handle

PLAYED_TO_ITS_END = ("ok", "mismatch", "ledger")  # it may have failed, and kept no peer from its own end


@dataclass(slots=True)
class Playing:
    """One part while it is being played; `slot` is its place among the parts of its worker."""

    part: Part
    worker: Handle
    slot: int
    capture: Capture
    ready: bool = False
    end: End | None = None
    result: dict[str, Json] = field(default_factory=dict)
    pid: int | None = None

    @property
    def board(self) -> Board:
        """What the part is doing."""
        return self.worker.boards[self.slot]

    @property
    def waits_for(self) -> str | None:
        """The peer that this part waits for, by its board."""
        return self.board.peer if self.end is None else None

    @property
    def has_started(self) -> bool:
        """Whether the worker has taken the part up."""
        return self.ready or self.end is not None or self.worker.boards[0].phase not in ("", "idle")

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped the worker."""
        return process.state(self.worker.pid) in ("T", "t")

    @property
    def doing(self) -> str:
        """What the part is at: its phase, whom it waits for, the last frame, whether it is stopped."""
        board = self.board
        text = f"in phase '{board.phase or 'start'}'"
        if board.peer is not None:
            text += f", waiting for '{board.due}' from {board.peer}"
        if board.last_frame:
            text += f", after {board.last_frame}"
        if self.is_stopped:
            text += ", stopped by a signal"
        elif process.state(self.worker.pid) == "D":
            text += ", inside a call of the kernel (state D)"
        return text

    def report(self) -> WorkerReport:
        """Return what came of the part."""
        end = self.end or End(self.part.label, Outcome.ERROR, "no_check", "has no end")
        how = self.worker.exit
        uuid = self.result.get("device_uuid")
        return WorkerReport(
            role=self.part.role,
            index=self.part.index,
            device=self.part.device,
            device_uuid=str(uuid) if uuid is not None else None,
            pid=self.pid,
            outcome=end.outcome,
            exit_code=how.code if how is not None else None,
            signal=how.signal if how is not None else None,
            reason=end.reason,
            reason_code=end.code,
            culprit=end.culprit,
            noted=cast("Mapping[str, int]", self.result.get("noted", {})),
            log=self.capture.lines(),
        )


def misses(parts: Collection[Playing]) -> list[str]:
    """Name each fault that never struck, but for those that another fault left no time for."""
    missed = [
        (playing, fault)
        for playing in parts
        for number, fault in enumerate(playing.part.faults)
        if not playing.board.has_struck(number)
    ]
    another_struck = len(missed) < sum(len(playing.part.faults) for playing in parts)
    return [
        f"{playing.part.label}: the fault {fault.kind!r}, due in {fault.phase!r} of round {fault.round}, "
        "never struck"
        for playing, fault in missed
        if not another_struck or (playing.end is not None and playing.end.code in PLAYED_TO_ITS_END)
    ]


def nobody(scenario: Scenario, observed: Outcome) -> tuple[WorkerReport, ...]:
    """Return the roles of a scenario that no worker was given, on the devices that the author named."""
    return tuple(
        WorkerReport(role.name, role.index, role.device, None, None, observed) for role in scenario.roles
    )


def read_end(label: str, message: Mapping[str, Json]) -> End:
    """Return a part's end as its worker told it; raises KeyError, ValueError."""
    culprit = message["culprit"]
    return End(
        label,
        Outcome(str(message["outcome"])),
        str(message["code"]),
        str(message["reason"]),
        str(culprit) if culprit is not None else None,
    )
