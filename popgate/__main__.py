"""The command `popgate`, also as ``python -m popgate``."""

from __future__ import annotations

from popgate.own import prefer_own


def main() -> None:
    """Run the command `popgate`."""
    prefer_own()
    from app.cli import main as command

    command()


def popef_dump() -> None:
    """Run `popgate dump` under its old name `popef_dump`."""
    prefer_own()
    from app.cli import popef_dump as command

    command()


if __name__ == "__main__":
    main()
