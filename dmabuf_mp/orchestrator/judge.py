"""The verdict on one scenario from the ends that its parts came to: cause before collateral. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dmabuf_mp.model import SEVERITY, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class End:
    """How one part ended; `culprit` is the peer it blames, where it only suffered."""

    label: str
    outcome: Outcome
    code: str = "ok"
    reason: str = ""
    culprit: str | None = None


CHARGES = ("protocol", "wrong_buffer")


def convict(ends: Sequence[End]) -> list[End]:
    """Move each charge to the part that it is about: who sent what may not be sent carries the outcome.

    Its peers, the one that noticed too, say `peer_gone` with its name.
    """
    charges = {end.culprit: end for end in reversed(ends) if end.code in CHARGES and end.culprit}
    judged = []
    for end in ends:
        charge = charges.get(end.label)
        if charge is not None and (end.outcome is Outcome.PASSED or end.code in ("peer_gone", *CHARGES)):
            judged.append(End(end.label, charge.outcome, charge.code, f"{charge.label}: {charge.reason}"))
        elif end.code in CHARGES and end.culprit:
            judged.append(End(end.label, Outcome.ERROR, "peer_gone", end.reason, end.culprit))
        else:
            judged.append(end)
    return judged


def judge(ends: Sequence[End]) -> tuple[Outcome, str, str]:
    """Return what was observed, its reason code and its reason; of no end at all, an error."""
    if not ends:
        return Outcome.ERROR, "no_check", "nothing was run"
    by_label = {end.label: end for end in ends}
    causes = [end for end in ends if not _is_collateral(end, by_label)] or list(ends)
    worst = min(causes, key=lambda end: SEVERITY.index(end.outcome))
    if worst.outcome is Outcome.PASSED:
        return Outcome.PASSED, "ok", ""
    return worst.outcome, worst.code, f"{worst.label}: {worst.reason}"


def _is_collateral(end: End, by_label: Mapping[str, End]) -> bool:
    """Whether a part only suffered from another's end, which is not a pass."""
    culprit = by_label.get(end.culprit or "")
    return culprit is not None and culprit is not end and culprit.outcome is not Outcome.PASSED


def stuck(waiting: Mapping[str, str | None]) -> frozenset[str]:
    """Return who holds up the rest: of those not done, the ones that wait for nobody who is not done.

    `waiting` maps each unfinished part to the peer that it waits for. Where all wait in a circle, all
    are returned.
    """
    roots = {label for label, peer in waiting.items() if peer not in waiting}
    return frozenset(roots or waiting)
