"""The command `popgate`, also as ``python -m popgate``."""

from __future__ import annotations

from popgate.own import prefer_own


def main() -> None:
    """The entry point of `popgate`."""
    prefer_own()
    from app.cli import main as command

    command()


def popef_dump() -> None:
    """The entry point of `popef_dump`, which is `popgate dump` by its old name."""
    prefer_own()
    from app.cli import popef_dump as command

    command()


if __name__ == "__main__":
    main()
