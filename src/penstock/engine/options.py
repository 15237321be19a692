"""The options of a query: one frozen value that is checked as a whole before anything runs.

People write durations as ``"1 s"`` and sizes as ``"1 GB"``; inside there are only seconds and bytes.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast

from penstock.errors import ConfigError
from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import DEFAULT_MAX_PARALLELISM, MAX_PARALLELISM_LIMIT
from penstock.protocol.parallelism import (
    DEFAULT_PARALLELISM,
    Asked,
    TooParallel,
    UnknownOperators,
    asked_by_stage,
    by_stage,
    too_parallel,
)
from penstock.records import Migration
from penstock.units import Duration, Size, bad_value, parse_bytes, parse_duration

Trigger: TypeAlias = Literal["available_now"] | float | None

BESIDE_OPTIONS = ("on_event", "dead_letters", "dry_run")
"""Arguments of `start` that are no options. A typo in one of them arrives here as an unknown option."""


class Options(TypedDict, total=False):
    """The options of `start`, all but the folder, in the forms that people may write. `Config` has their defaults."""

    name: str | None
    parallelism: int | Mapping[str, int]
    max_parallelism: int
    epoch: Duration | None
    epoch_retries: int
    epoch_timeout: Duration | None
    commit_timeout: Duration | None
    source_timeout: Duration | None
    storage_timeout: Duration
    trigger: Literal["available_now"] | Duration | None
    flush: Literal["end"] | None
    restore: int | str | os.PathLike[str] | None
    fork: bool
    drop_in_flight: Literal["all"] | Sequence[str]
    renamed: Mapping[str, str]
    forget: Sequence[str]
    reset: Sequence[str]
    migrate: Mapping[str, Migration]
    autoscale: tuple[int, int] | None
    retain: int
    max_in_flight: Size
    max_in_flight_segments: int
    max_backlog: Duration | None
    max_uncommitted: int
    max_error_rate: float
    metrics: int | str | None
    prefetch_bytes: Size
    segment_bytes: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Options of one query, checked; `Config.of` makes one from what people write."""

    checkpoint: str
    name: str | None = None
    parallelism: Asked = DEFAULT_PARALLELISM
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    epoch: float | None = 1.0
    """Seconds until the barrier fires; None: no barrier, an epoch ends when its input is used up."""
    epoch_retries: int = 2
    epoch_timeout: float | None = 600.0
    """Seconds without a finished step after which a subtask counts as hung: the driver cancels the epoch and runs it
    again. None: never."""
    commit_timeout: float | None = 300.0
    """Seconds after which Penstock reports a commit that has not returned, and gives it up when the query ends. None:
    never."""
    source_timeout: float | None = 300.0
    """Seconds after which Penstock reports a source that does not answer. None: never."""
    storage_timeout: float = 120.0
    """Seconds for which the driver tries again when the checkpoint's storage fails."""
    trigger: Trigger = None
    """Seconds between micro-batches; None: as fast as possible."""
    flush: Literal["end"] | None = None
    """``"end"``, with ``trigger="available_now"``: once everything is read, close all windows and sessions, emit
    unmatched rows of joins, fire timers in event time."""
    restore: CheckpointId | str | None = None
    """A checkpoint id, or where a savepoint or a copy lies; None: the newest checkpoint if there is one."""
    fork: bool = False
    """Whether another query begins from the place that `restore` names, into other tables, beside the original."""
    drop_in_flight: Literal["all"] | tuple[str, ...] = ()
    """Edges or operators whose in-flight records are thrown away. Together with `restore`, unless nobody reads them any
    more."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Operators, sinks and sources as the checkpoint names them, each with its new name."""
    forget: tuple[str, ...] = ()
    """Operators, sinks, or `operator.part` of state, that the pipeline does not have any more: their state may go."""
    reset: tuple[str, ...] = ()
    """Operators, sinks and sources that begin anew; only together with `restore`."""
    migrate: tuple[tuple[str, Migration], ...] = ()
    """Tables of state, each with a function that makes new rows of old ones, before the query starts."""
    autoscale: tuple[int, int] | None = None
    """The lowest and highest parallelism for autoscaling; None: no autoscaling."""
    retain: int = 3
    max_in_flight: int = 1_000_000_000
    max_in_flight_segments: int = 2_000
    max_backlog: float | None = 10.0
    """Seconds of work in flight, by the measured cost of rows, beyond which no micro-batch is taken, and at least three
    epochs. None: no limit."""
    max_uncommitted: int = 16
    """How many published checkpoints may wait for their commit. At this number epochs wait, too."""
    max_error_rate: float = 0.05
    """The share of an operator's records that may become dead letters, counted over at least 1,000."""
    metrics: tuple[str, int] | None = None
    """Address and port of the driver's endpoint for Prometheus; None: there is none."""
    prefetch_bytes: int = 16 << 20
    segment_bytes: int = 64 << 20

    def query_name(self, url: str) -> str:
        """The name that the user gave, or that of the folder.

        >>> Config.of("here").query_name("file:///checkpoints/totals")
        'totals'
        """
        return self.name or PurePosixPath(url).name

    def subtasks(self, stage_of: Mapping[str, str]) -> dict[str, int]:
        """The number of subtasks of every stage; `stage_of` has the stage of every operator.

        Raises: `ConfigError` for operators that are not there.
        """
        return _known(by_stage(self.parallelism, stage_of, self.max_parallelism))

    @classmethod
    def of(cls, checkpoint: str | os.PathLike[str], **options: Unpack[Options]) -> Config:
        """Options as people write them.

        >>> Config.of("checkpoints/totals", epoch="500 ms", parallelism=8).epoch
        0.5

        Raises: `ConfigError` for an unknown option or a value that cannot be.
        """
        written = {"checkpoint": checkpoint, **cast("Mapping[str, object]", options)}
        for option in written:
            _refuse_unknown(option)
        config = cls(**{option: _PARSERS[option](option, value) for option, value in written.items()})
        _refuse_too_parallel(config.parallelism, config.max_parallelism)
        _refuse_wide_autoscale(config)
        _refuse_fork_of_nothing(config)
        _refuse_endless_flush(config)
        return config


# --- one parser per option: (option, what was written) -> value ---------------------------------------------------

_Parser: TypeAlias = Callable[[str, Any], Any]


def _whole(lo: int, hi: int | None = None) -> _Parser:
    allowed = f"a whole number of at least {lo}" if hi is None else f"a whole number from {lo} to {hi}"

    def parse(option: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < lo or (hi is not None and value > hi):
            raise bad_value(option, value, allowed)
        return value

    return parse


def _flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise bad_value(option, value, "True or False")
    return value


def _share(option: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise bad_value(option, value, "a share from 0 to 1; 0.05 is five percent")
    return float(value)


def _size(option: str, value: object) -> int:
    size = parse_bytes(value, option)
    if size == 0:
        raise bad_value(option, value, "more than 0 bytes")
    return size


def _period(option: str, value: object) -> float:
    seconds = parse_duration(value, option)
    if seconds == 0:
        raise bad_value(option, value, "longer than 0 s")
    return seconds


def _period_or_none(option: str, value: object) -> float | None:
    return None if value is None else _period(option, value)


def _span(option: str, value: object) -> float:
    return parse_duration(value, option)


def _trigger(option: str, value: object) -> Trigger:
    if value is None:
        return None
    if value == "available_now":
        return "available_now"
    try:
        return _period(option, value)
    except ConfigError:
        raise bad_value(option, value, '"available_now", or a duration such as "1 s"') from None


def _flush(option: str, value: object) -> Literal["end"] | None:
    if value not in (None, "end"):
        raise bad_value(option, value, '"end", or None')
    return "end" if value == "end" else None


def _parallelism(option: str, value: object) -> Asked:
    whole = _whole(1, MAX_PARALLELISM_LIMIT)
    if isinstance(value, str):
        raise bad_value(option, value, 'a whole number such as 4, or numbers by operator such as {"totals": 4}')
    if isinstance(value, Mapping):
        return {_text(f"{option} key", stage): whole(f"{option}[{stage}]", count) for stage, count in value.items()}
    count: int = whole(option, value)
    return count


def _text(option: str, value: object) -> str:
    if not isinstance(value, str | os.PathLike) or not str(os.fspath(value)).strip():
        raise bad_value(option, value, "a text that is not empty")
    return str(os.fspath(value))


def _restore(option: str, value: object) -> CheckpointId | str | None:
    if value is None:
        return None
    if isinstance(value, str | os.PathLike):
        text = _text(option, value)
        return CheckpointId(int(text)) if text.isdecimal() else text
    return CheckpointId(_whole(0)(option, value))


def _names(option: str, value: object) -> Literal["all"] | tuple[str, ...]:
    if value == "all":
        return "all"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise bad_value(option, value, '"all", or a list of names of edges or operators')
    return tuple(_text(option, name) for name in value)


def _listed(option: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise bad_value(option, value, "a list of names")
    return tuple(_text(option, name) for name in value)


def _by_name(option: str, value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise bad_value(option, value, 'new names by old ones, such as {"old": "new"}')
    return tuple((_text(option, old), _text(option, new)) for old, new in value.items())


def _functions(option: str, value: object) -> tuple[tuple[str, Migration], ...]:
    if not isinstance(value, Mapping) or not all(callable(function) for function in value.values()):
        raise bad_value(option, value, 'functions by operator, such as {"totals": function}')
    return tuple((_text(option, name), function) for name, function in value.items())


def _bounds(option: str, value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    whole = _whole(1, MAX_PARALLELISM_LIMIT)
    if isinstance(value, list | tuple) and len(value) == 2:
        lowest, highest = (whole(option, bound) for bound in value)
        if lowest <= highest:
            return lowest, highest
    raise bad_value(option, value, "two whole numbers, the lowest and the highest parallelism, such as (2, 16)")


def _address(option: str, value: object) -> tuple[str, int] | None:
    """A port on all addresses, as scrapers from outside need it, or ``"127.0.0.1:9400"``."""
    if value is None:
        return None
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", value)
    if isinstance(port, str) and port.isdecimal():
        port = int(port)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65_535:
        raise bad_value(option, value, 'a port such as 9400, or an address and a port such as "127.0.0.1:9400"')
    return host, port


_PARSERS: dict[str, _Parser] = {
    "checkpoint": _text,
    "name": lambda option, value: None if value is None else _text(option, value),
    "parallelism": _parallelism,
    "max_parallelism": _whole(1, MAX_PARALLELISM_LIMIT),
    "epoch": _period_or_none,
    "epoch_retries": _whole(0),
    "epoch_timeout": _period_or_none,
    "commit_timeout": _period_or_none,
    "source_timeout": _period_or_none,
    "storage_timeout": _span,
    "trigger": _trigger,
    "flush": _flush,
    "restore": _restore,
    "fork": _flag,
    "drop_in_flight": _names,
    "renamed": _by_name,
    "forget": _listed,
    "reset": _listed,
    "migrate": _functions,
    "autoscale": _bounds,
    "retain": _whole(1),
    "max_in_flight": _size,
    "max_in_flight_segments": _whole(1),
    "max_backlog": _period_or_none,
    "max_uncommitted": _whole(1),
    "max_error_rate": _share,
    "metrics": _address,
    "prefetch_bytes": _size,
    "segment_bytes": _size,
}
assert _PARSERS.keys() == {option.name for option in fields(Config)} == {"checkpoint", *Options.__annotations__}


def _refuse_unknown(option: str) -> None:
    if option in _PARSERS:
        return
    close = difflib.get_close_matches(option, [*_PARSERS, *BESIDE_OPTIONS], n=3)
    raise ConfigError(
        f"there is no option {option!r}",
        cause=f"did you mean {' or '.join(close)}?" if close else "a name of another library, or of another version",
        next_step=f"options are {', '.join(sorted(_PARSERS))}",
        option=option,
    )


def subtasks_asked(written: object, stage_of: Mapping[str, str], max_parallelism: int) -> dict[str, int]:
    """The number of subtasks by stage that the user asked for while the query runs.

    Raises: `ConfigError` for a value that cannot be, and for operators that are not there.
    """
    asked = _parallelism("parallelism", written)
    _refuse_too_parallel(asked, max_parallelism)
    return _known(asked_by_stage(asked, stage_of))


def _known(resolved: dict[str, int] | UnknownOperators) -> dict[str, int]:
    match resolved:
        case UnknownOperators(names, known):
            raise ConfigError(
                f"parallelism names {', '.join(map(repr, names))}; operators are {', '.join(known)}",
                cause="a typo, or the operator has no name=",
                next_step="use the names of operators as above",
                option="parallelism",
            )
        case stages:
            return stages


def _refuse_too_parallel(asked: Asked, max_parallelism: int) -> None:
    match too_parallel(asked, max_parallelism):
        case TooParallel(operator, count):
            raise ConfigError(
                f"parallelism{f' of {operator}' if operator else ''} is {count}, max_parallelism is {max_parallelism}",
                cause="a subtask needs at least one key group of its own",
                next_step="lower parallelism, or raise max_parallelism; for an existing checkpoint: penstock savepoint",
                option="parallelism",
            )


def _refuse_wide_autoscale(config: Config) -> None:
    if config.autoscale is not None and config.autoscale[1] > config.max_parallelism:
        raise ConfigError(
            f"autoscale goes up to {config.autoscale[1]}, max_parallelism is {config.max_parallelism}",
            cause="a subtask needs at least one key group of its own",
            next_step="lower it, or raise max_parallelism; for a checkpoint that exists: penstock savepoint",
            option="autoscale",
        )


def _refuse_fork_of_nothing(config: Config) -> None:
    if config.fork and not isinstance(config.restore, str):
        named = "nothing" if config.restore is None else f"checkpoint {config.restore} of its own folder"
        raise ConfigError(
            f"fork=True with a restore of {named}",
            cause="a fork goes on from the checkpoint of another query, in a folder of its own",
            next_step="name the original's folder: restore='path' for its newest checkpoint, 'path@42' for that one;"
            " once the fork has begun, leave restore and fork out",
            option="fork",
        )


def _refuse_endless_flush(config: Config) -> None:
    if config.flush is not None and config.trigger != "available_now":
        raise ConfigError(
            'flush="end" of a query that has no end',
            cause='a query ends by itself only with trigger="available_now"',
            next_step='add trigger="available_now", or leave flush= out: the watermark closes windows as rows come',
            option="flush",
        )
