"""`python -m popef_io FILE ...`: print the content of containers in readable form."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from popef_io.dump import dump_document, dump_text
from popef_io.errors import PopefError
from popef_io.reader import Reader


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the files. Return the exit status: 0, or 1 if a file cannot be read or no
    plugin makes dumps. The reason goes to stderr.
    """
    parser = argparse.ArgumentParser(
        prog="python -m popef_io", description="Print the contents of PopEF files."
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument(
        "-m", "--metadata", action="store_true", help="print the metadata only"
    )
    parser.add_argument(
        "--all", action="store_true", help="print every blob, anchor and value in full"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--verify", action="store_true", help="also check the checksums of payloads"
    )
    options = parser.parse_args(arguments)
    reader = Reader()
    try:
        for path in options.files:
            reader.parse_file(path)
        if options.verify:
            reader.verify()
        text = _dump(reader, options)
    except (PopefError, OSError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return _write(text)


def _dump(reader: Reader, options: argparse.Namespace) -> str:
    if options.json:
        document = dump_document(
            reader, metadata_only=options.metadata, all=options.all
        )
        return json.dumps(document, indent=2) + "\n"
    return dump_text(reader, metadata_only=options.metadata, all=options.all)


def _write(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The program that reads the output has ended. Keep the interpreter from writing
        # again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
