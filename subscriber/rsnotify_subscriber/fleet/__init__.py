"""Following many Sources, in one process or shared by several."""

from rsnotify_subscriber.fleet.fleet import Fleet, FleetTotals, FollowedSourceStatus, Phase, totals
from rsnotify_subscriber.pool import Limits

__all__ = ["Fleet", "FleetTotals", "FollowedSourceStatus", "Limits", "Phase", "totals"]
