"""Secrets in files that other users of the machine can open."""

from __future__ import annotations

import stat
from pathlib import Path

#: Permissions beyond the owner's, and the users that have them.
_READ = ((stat.S_IRGRP, "its group"), (stat.S_IROTH, "all users"))
_WRITE = ((stat.S_IWGRP, "its group"), (stat.S_IWOTH, "all users"))


def exposure_of(path: Path) -> str:
    """Return which other users can read or write a file.

    An example is ``its group can read it (mode 0640)``. The result is empty if no other
    user can, or if the file does not exist.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    found = []
    for verb, bits in (("read", _READ), ("write", _WRITE)):
        users = [who for bit, who in bits if mode & bit]
        if users:
            found.append(f"{' and '.join(users)} can {verb} it")
    if not found:
        return ""
    return f"{', and '.join(found)} (mode {stat.S_IMODE(mode):04o})"
