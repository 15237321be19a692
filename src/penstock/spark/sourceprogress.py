"""What Structured Streaming tells about its sources after each micro-batch, made short."""

from __future__ import annotations

import json
import math
from typing import Any

from penstock.display import shortened
from penstock.engine.feed import SourceFigures
from penstock.text import redacted

OFFSETS_CHARS_MAX = 500
"""Of a topic with hundreds of partitions the first ones are enough for people; `behind` counts all."""


def source_figures(progress: Any) -> list[SourceFigures]:
    """From a `StreamingQueryProgress`, or None before the first one."""
    if progress is None:
        return []
    told = json.loads(progress.json)
    return [_figures(source) for source in told.get("sources", ())]


def _figures(source: dict[str, Any]) -> SourceFigures:
    behind = source.get("metrics", {}).get("maxOffsetsBehindLatest")
    return SourceFigures(
        source=_text(source.get("description", "")),
        rows_per_s=_number(source.get("inputRowsPerSecond")),
        processed_per_s=_number(source.get("processedRowsPerSecond")),
        end=_text(source.get("endOffset")),
        latest=_text(source.get("latestOffset")),
        behind=None if behind is None else max(0, int(float(behind))),
    )


def _number(value: Any) -> float | None:
    """Spark writes NaN and Infinity as text."""
    number = value if isinstance(value, int | float) else None
    return float(number) if number is not None and math.isfinite(number) else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return shortened(redacted(text), OFFSETS_CHARS_MAX)
