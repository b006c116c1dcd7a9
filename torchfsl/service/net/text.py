"""Text of others as it may be shown: on terminals, in logs, on pages."""

from __future__ import annotations

import logging


def printable(text: str) -> str:
    r"""The text with everything that is not printable escaped, as `\x1b`.

    Line breaks, terminal controls, marks that change the direction of text, halves of surrogate
    pairs: whoever wrote the text moves no cursor and hides no word of it.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The same for the library's text in several lines, in which others are quoted."""
    return "\n".join(map(printable, text.split("\n")))


def say(text: str) -> None:
    """Print such text."""
    print(printable_lines(text))


class Plain(logging.Formatter):
    """Records as lines for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The record, as `printable_lines` has it."""
        return printable_lines(super().format(record))
