"""SQL text as tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SYMBOLS = ("<=>", "<>", "!=", "<=", ">=", "==", "||", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ",", ".")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)(?![A-Za-z_0-9])"
    r"|(?P<raw>[rR](?:'[^']*'|\"[^\"]*\"))"
    r"|(?P<text>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")"  # as in Spark, double quotes are around text, too
    r"|(?P<quoted>`(?:[^`]|``)*`)"
    r"|(?P<word>[A-Za-z_]\w*)"
    rf"|(?P<symbol>(?!--)(?:{'|'.join(map(re.escape, _SYMBOLS))})))",  # -- begins a comment
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([01][0-7]{2})|(.))", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class SqlError(Exception):
    """Text that cannot be read. Its message says what was found where."""


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is number, text, quoted (a name in quotes), word, symbol or end."""

    kind: str
    text: str
    place: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words

    def is_symbol(self, *symbols: str) -> bool:
        return self.kind == "symbol" and self.text in symbols


def tokens_of(sql: str) -> list[Token]:
    """Raises: `SqlError`.

    >>> [token.text for token in tokens_of("a.b >= 'it''s'")]
    ['a', '.', 'b', '>=', "it's", '']
    """
    tokens: list[Token] = []
    place, end = 0, len(sql.rstrip())
    while place < end:
        match = _TOKEN.match(sql, place)
        if match is None:
            raise SqlError(f"{sql[place:].lstrip()[:20]!r} at character {place + 1} is not understood")
        kind = str(match.lastgroup)
        text = match[kind]
        if kind == "raw":
            kind, text = "text", text[2:-1]
        elif kind in ("text", "quoted"):
            text = _unquoted(text, escapes=kind == "text")
        tokens.append(Token(kind, text, match.start(match.lastgroup or 0)))
        place = match.end()
    return [*tokens, Token("end", "", end)]


def _unquoted(text: str, *, escapes: bool) -> str:
    """What stands in quotes. A backslash begins an escape, as in Spark; before % and _ it stays, for LIKE.

    >>> _unquoted(r"'a\\nb'", escapes=True)
    'a\\nb'
    """
    quote = text[0]
    if not escapes:
        return text[1:-1].replace(quote * 2, quote)
    parts = re.split(r"(\\.)", text[1:-1], flags=re.DOTALL)
    doubled = "".join(part if part.startswith("\\") else part.replace(quote * 2, quote) for part in parts)
    return _ESCAPE.sub(_character, doubled)


def _character(match: re.Match[str]) -> str:
    short, long, octal, other = match.groups()
    if other is not None:
        return _ESCAPED.get(other, other)
    code = int(octal, 8) if octal else int(short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise SqlError(f"{match[0]} is no character")
    return chr(code)
