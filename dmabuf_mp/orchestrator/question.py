"""A question to one worker that is not about a scenario, asked now and waited for later."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dmabuf_mp.errors import PeerGone
from dmabuf_mp.wire import json_bytes

if TYPE_CHECKING:
    from dmabuf_mp.model import Json
    from dmabuf_mp.orchestrator.handle import Handle
    from dmabuf_mp.orchestrator.loop import Loop
    from dmabuf_mp.wire import Frame, Kind


class Question:
    """Asks at once; the worker answers while other things go on."""

    def __init__(self, worker: Handle, kind: Kind, question: Json) -> None:
        self.worker = worker
        self._answer: dict[str, Json] | None = None
        self._said = b""
        worker.on_frame = self._take
        worker.on_output = self._hear
        with contextlib.suppress(PeerGone):
            worker.control.send(kind, json_bytes(question))

    def _take(self, frame: Frame) -> None:
        self._answer = frame.json()
        frame.close()

    def _hear(self, level: str, data: bytes) -> None:
        self._said = (self._said + data)[-4096:]

    def wait(self, loop: Loop, limit_s: float) -> dict[str, Json] | str:
        """Return the answer, or why there is none."""
        worker = self.worker
        deadline = loop.clock.now() + limit_s * loop.scale
        in_time = loop.wait(lambda: self._answer is not None or worker.exit is not None, deadline)
        worker.forget()
        if self._answer is not None:
            return self._answer
        phase = worker.boards[0].phase or "start"
        if not in_time:
            return f"no answer within {limit_s * loop.scale:g} s, in phase '{phase}'"
        last_words = self._said.decode(errors="replace").strip().splitlines()[-1:]
        return ": ".join([f"the worker that asked {worker.exit} in phase '{phase}'", *last_words])
