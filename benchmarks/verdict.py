"""Figures against what they must reach."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdicts:
    """Collects what was measured; `ok` is whether every figure reached its mark."""

    lines: list[str] = field(default_factory=list)
    ok: bool = True

    def note(self, text: str) -> None:
        print(f"  {text}", flush=True)
        self.lines.append(text)

    def at_most(self, what: str, value: float, limit: float, unit: str = "") -> None:
        self._judge(what, value, f"≤ {limit:g}{unit}", unit, reached=value <= limit)

    def at_least(self, what: str, value: float, limit: float, unit: str = "") -> None:
        self._judge(what, value, f"≥ {limit:g}{unit}", unit, reached=value >= limit)

    def missing(self, why: str) -> None:
        """What had to be measured could not be."""
        self.ok = False
        self.note(f"MISS {why}")

    def _judge(self, what: str, value: float, mark: str, unit: str, *, reached: bool) -> None:
        self.ok &= reached
        figure = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        self.note(f"{'ok  ' if reached else 'MISS'} {what}: {figure}{unit} ({mark})")


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
