"""Limit of the file descriptors of this process."""

from __future__ import annotations

import contextlib
import resource

#: Each connection needs a descriptor. A loaded model needs none.
WANTED = 65536


def raise_descriptor_limit() -> int:
    """Raise the soft limit of file descriptors as far as allowed, up to the wanted
    number.

    The usual 1024 is too little for hundreds of models. Returns the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
