"""Text of clients in the log: limited, in one line, and without commands to a terminal.

A path, a header or an error message may hold line ends, escape sequences of terminals
and characters that turn the direction of the text.
"""

from __future__ import annotations

#: Characters of a value that a log line has at most.
MOST_SHOWN = 2000


def escaped(text: str, form: str = "") -> str:
    """Return `text` with every character escaped that is not printable, as Python
    writes it, or in the `form` that `str.format` takes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c, form) for c in text)


def _escape(character: str, form: str) -> str:
    if not form:
        return character.encode("unicode_escape").decode()
    # Beyond 16 bits JSON writes two surrogates.
    units = character.encode("utf-16-be", "surrogatepass")
    pairs = (units[i : i + 2] for i in range(0, len(units), 2))
    return "".join(form.format(int.from_bytes(pair)) for pair in pairs)


def escaped_lines(text: str) -> str:
    """Return `text` with its further lines indented, so that none of them looks like
    the first line of a record.

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
    """Return a value as one word of a line: in quotes if it has spaces or characters
    that are not printable."""
    text = shortened(str(value))
    if text.isprintable() and " " not in text:
        return text
    return repr(text)
