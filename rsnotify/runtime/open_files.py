"""The limit of open files, which include connections."""

from __future__ import annotations


def allow_files(wanted: int) -> int:
    """Raise the limit of open files as far as wanted and possible, and return it."""
    try:
        import resource  # `rsnotify --help` does not need it
    except ImportError:  # on Windows
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft
