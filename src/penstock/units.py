"""Durations and sizes as people write them: ``"1 s"``, ``"64 MB"``. Inside there are only seconds and bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TypeAlias

from penstock.errors import ConfigError

Duration: TypeAlias = str | float | timedelta
"""``"1 s"``, seconds, or a timedelta."""
Size: TypeAlias = str | int
"""``"64 MB"``, or bytes."""

_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3_600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}


_BYTES = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}


_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


_DURATION_FORMS = 'a duration such as "500 ms", "1 s", "2 min", "1 h", a number of seconds or a timedelta'


# About a thousand years: sums of such spans and of event times in microseconds stay far from the limits of 64 bits.
_DURATION_S_MAX = 1e11 / 3


_BYTES_FORMS = 'a size such as "64 MB", "1 GB" (powers of 1000), "512 KiB" (powers of 1024) or a number of bytes'


def parse_duration(value: object, option: str = "duration") -> float:
    """Seconds.

    >>> parse_duration("500 ms"), parse_duration("2 min"), parse_duration(1.5)
    (0.5, 120.0, 1.5)

    Raises: `ConfigError`.
    """
    match value:
        case timedelta():
            seconds = value.total_seconds()
        case str():
            seconds = _quantity(value, _SECONDS)
        case int() | float() if not isinstance(value, bool):
            seconds = float(value)
        case _:
            seconds = math.nan
    if not 0 <= seconds <= _DURATION_S_MAX:
        raise bad_value(option, value, _DURATION_FORMS)
    return seconds


def parse_signed_duration(value: object, option: str = "duration") -> float:
    """Seconds, which may be below zero.

    >>> parse_signed_duration("-500 ms"), parse_signed_duration(1.5)
    (-0.5, 1.5)

    Raises: `ConfigError`.
    """
    match value:
        case str() if value.lstrip().startswith("-"):
            return -parse_duration(value.lstrip()[1:], option)
        case timedelta() if value < timedelta(0):
            return -parse_duration(-value, option)
        case int() | float() if value < 0:
            return -parse_duration(-value, option)
    return parse_duration(value, option)


def parse_bytes(value: object, option: str = "size") -> int:
    """Bytes.

    >>> parse_bytes("64 MB"), parse_bytes("512 KiB"), parse_bytes(4096)
    (64000000, 524288, 4096)

    Raises: `ConfigError`.
    """
    match value:
        case str():
            count = _quantity(value, _BYTES)
        case int() if not isinstance(value, bool):
            count = value
        case _:
            count = math.nan
    if not 0 <= count < math.inf:
        raise bad_value(option, value, _BYTES_FORMS)
    return round(count)


def _quantity(text: str, units: Mapping[str, float]) -> float:
    """The quantity; NaN if `text` is not a number with one of these units."""
    match = _QUANTITY.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    return float(match[1]) * unit if match and unit else math.nan


def bad_value(option: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(
        f"{option}={value!r}",
        cause="the value cannot be understood, or lies outside of what is allowed",
        next_step=f"{option} takes {allowed}",
        option=option,
    )
