"""Why a port cannot be listened on."""

from __future__ import annotations

import os


def cannot_listen(host: str, port: int, error: Exception) -> str:
    """Return a sentence that says it.

    Args:
        host: The address, or its name.
        port: The port.
        error: What was raised.
    """
    reason = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        # `strerror` may name the address once more; the resolver has numbers of its own below 0.
        known = os.strerror(error.errno) if error.errno > 0 else error.strerror or reason
        reason = known.partition(" (while")[0]
    return f"cannot listen on {host} port {port}: {reason}"
