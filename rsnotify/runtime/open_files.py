"""How many files, connections among them, a process may have open."""

from __future__ import annotations

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]


def allow_files(wanted: int) -> int:
    """Let this process open more files at once, as far as the system lets it.

    Args:
        wanted: How many it may come to need.

    Returns:
        How many it may open.
    """
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft
