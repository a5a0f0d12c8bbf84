"""The checks. Importing this registers them all."""

from rsnotify_hub_check.checks import (
    callbacks,
    distribution,
    failures,
    leases,
    publishing,
    renewal,
    requests,
    responses,
    signatures,
    verification,
)
from rsnotify_hub_check.registry import CHECKS, ConformanceCheck


def _place(check: ConformanceCheck) -> list[int]:
    return [int(part) for part in check.section.split(".")]


#: Every check, in the order of the REC.
ALL = tuple(sorted(CHECKS.values(), key=_place))

__all__ = [
    "ALL",
    "callbacks",
    "distribution",
    "failures",
    "leases",
    "publishing",
    "renewal",
    "requests",
    "responses",
    "signatures",
    "verification",
]
