"""Text that came from files, URLs or other libraries, made fit for people: no terminal commands, no secrets.

One function each, so that every message, event and line of the command goes through the same rule.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

HIDDEN = "***"

# Terminals obey C0 and C1 controls; marks of writing direction and line separators make text look like other text.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_LINE_BREAKS = re.compile(r"[\t\n]")

# Every pattern takes time in proportion to the text, which an attacker may have written: a match begins at something
# fixed, and no two of its beginnings look at the same characters.
_WORD = re.compile(r"[^\s\"']+")
_USER = re.compile(r"://(?P<user>[^/\s\"'@?#]*(?:@[^/\s\"'@?#]*)*)@")
_QUERY = re.compile(r"\?[^\s\"'<>\\]*")
_PARAMETER = re.compile(r"=[^&#]*")
_NAMED = re.compile(
    r"(?P<name>(?:secret|passwo?r?d|token|credential|signature|access[._-]?key|account[._-]?key)[\w.-]{0,99}"
    r"\\?[\"']?\s*[=:]\s*\\?[\"']?)(?P<value>(?:Bearer |Basic )?[^\s\"'&,;)}\]\\]+)",
    re.IGNORECASE,
)
# Inside JSON: one string with its quotes. No character can be matched in two ways.
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SUSPECT = re.compile(
    r"://|secret|passwo?r?d|token|credential|signature|_key|[.-]key|accesskey|accountkey", re.IGNORECASE
)
"""Without one of these a text has nothing to hide: most have none, and are not looked at string by string."""
# In abfss://container@account the part before @ is no secret.
_CONTAINER_SCHEME = re.compile(r"(?<![A-Za-z0-9+.-])(abfs|wasb)s?$", re.IGNORECASE)
_SCHEME_LENGTH = 6


def printable(text: str, *, lines: bool = False) -> str:
    """The text with all terminal commands escaped. With `lines`, line breaks and tabs stay.

    >>> printable("a\\x1b[2Jb\\n")
    'a\\\\x1b[2Jb\\\\x0a'
    """
    shown = _UNPRINTABLE.sub(_escaped, text)
    return shown if lines else _LINE_BREAKS.sub(_escaped, shown)


def printable_json(text: str) -> str:
    """A JSON document whose strings hold nothing that a terminal would obey; it means the same."""
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def redacted(text: str) -> str:
    """The text without passwords in URLs, values in their query strings, and values that are called secrets.

    >>> redacted("s3://me:pass@bucket/x?sig=1 and secret_key=abc")
    's3://***@bucket/x?sig=*** and secret_key=***'
    """
    if "://" in text:
        text = _WORD.sub(_without_values, _USER.sub(_without_user, text))
    return _NAMED.sub(rf"\g<name>{HIDDEN}", text)


def redacted_json(text: str) -> str:
    """A JSON document with each of its strings redacted by itself. It stays JSON: names of ours and of users, such as
    a stage ``tokens``, stand before numbers, and a secret may stand beside an escape.

    >>> redacted_json('{"tokens": 3, "why": "password:\\\\nabc"}')
    '{"tokens": 3, "why": "password:\\\\n***"}'
    """
    return _JSON_STRING.sub(_redacted_string, text) if _SUSPECT.search(text) else text


def _redacted_string(match: re.Match[str]) -> str:
    if _SUSPECT.search(match[0]) is None:
        return match[0]
    plain = json.loads(match[0], strict=False)
    shown = redacted(plain)
    return match[0] if shown == plain else json.dumps(shown, ensure_ascii=False)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _without_user(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - _SCHEME_LENGTH) : match.start()]
    harmless = _CONTAINER_SCHEME.search(before) is not None and ":" not in match["user"]
    return match[0] if harmless else f"://{HIDDEN}@"


def _without_values(word: re.Match[str]) -> str:
    before, separator, place = word[0].partition("://")
    return before + separator + _QUERY.sub(lambda query: _PARAMETER.sub(f"={HIDDEN}", query[0]), place)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A question for people who misspelt a name, or nothing.

    >>> did_you_mean("usr", ["user", "amount"]), did_you_mean("x", ["user"])
    (" (did you mean 'user'?)", '')
    """
    close = difflib.get_close_matches(name, list(known), n=1) if isinstance(name, str) else []
    return f" (did you mean {close[0]!r}?)" if close else ""
