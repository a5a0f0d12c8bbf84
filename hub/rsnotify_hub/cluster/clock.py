"""The clock of leases: it also counts the time in which the machine was suspended."""

from __future__ import annotations

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def lease_clock() -> float:
    """Return the seconds since the machine started, or since another instant."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)
