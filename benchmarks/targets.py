"""The targets of the design, and the figures of this run beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A target and the figure of this run, which should be at most the limit, or at least."""

    work: str
    figure: float
    limit: float
    unit: str
    at_least: bool

    @property
    def is_reached(self) -> bool:
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit


_compared: list[Target] = []


def compare(
    work: str, figure: float, limit: float, unit: str = "", *, at_least: bool = False
) -> None:
    """Note a figure, for the table at the end of the run."""
    _compared.append(Target(work, figure, limit, unit, at_least))


def show() -> None:
    """Print all figures with their targets."""
    if not _compared:
        return
    print(f"\n{'against the targets':62}{'target':>10}{'figure':>10}")
    for each in _compared:
        limit = f"{'≥' if each.at_least else '≤'} {each.limit:g}"
        verdict = "pass" if each.is_reached else "short"
        print(f"{f'{each.work} {each.unit}'.strip():62}{limit:>10}{each.figure:>10.3g}  {verdict}")
