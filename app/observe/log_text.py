"""Text of clients in the log: limited, in one line, and without commands to a terminal.

A path, a header or an error message may hold line ends, escape sequences of terminals
and characters that reverse the direction of text.
"""

from __future__ import annotations

#: The most characters of a value in a log line.
MOST_SHOWN = 2000


def escaped(text: str, form: str = "") -> str:
    """Return `text` with every unprintable character escaped.

    The escapes are Python's, or have the `form` that `str.format` takes.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c, form) for c in text)


def _escape(character: str, form: str) -> str:
    if not form:
        return character.encode("unicode_escape").decode()
    # JSON writes characters beyond 16 bits as two surrogates.
    units = character.encode("utf-16-be", "surrogatepass")
    pairs = (units[i : i + 2] for i in range(0, len(units), 2))
    return "".join(form.format(int.from_bytes(pair)) for pair in pairs)


def escaped_lines(text: str) -> str:
    """Return `text` with its further lines indented, so that none looks like the start
    of a record.

    Tabs stay.
    """
    lines = text.split("\n")
    return "\n    ".join(
        "\t".join(escaped(part) for part in line.split("\t")) for line in lines
    )


def shortened(text: str) -> str:
    """Return at most `MOST_SHOWN` characters of `text`."""
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[:MOST_SHOWN]}... ({len(text)} characters)"


def quoted(value: object) -> str:
    """Return a value as one word of a line.

    It is quoted if it has spaces or unprintable characters.
    """
    text = shortened(str(value))
    if text.isprintable() and " " not in text:
        return text
    return repr(text)
