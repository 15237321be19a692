"""SQL text as tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SYMBOLS = ("<=>", "<>", "!=", "<=", ">=", "==", "||", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ",", ".")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)(?![A-Za-z_0-9])"
    r"|(?P<text>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")"  # as in Spark, double quotes are around text, too
    r"|(?P<quoted>`(?:[^`]|``)*`)"
    r"|(?P<word>[A-Za-z_]\w*)"
    rf"|(?P<symbol>{'|'.join(map(re.escape, _SYMBOLS))}))"
)


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
        if kind in ("text", "quoted"):
            text = text[1:-1].replace(text[0] * 2, text[0])
        tokens.append(Token(kind, text, match.start(kind)))
        place = match.end()
    return [*tokens, Token("end", "", end)]
