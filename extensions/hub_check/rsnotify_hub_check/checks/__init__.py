"""The checks; importing this package registers all of them."""

from rsnotify_hub_check.checks import (  # noqa: F401
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


def _section(check: ConformanceCheck) -> list[int]:
    return [int(part) for part in check.section.split(".")]


#: All checks, in the order of the Recommendation.
ALL = tuple(sorted(CHECKS.values(), key=_section))
