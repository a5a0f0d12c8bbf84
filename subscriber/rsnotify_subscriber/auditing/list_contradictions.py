"""Lists that contradict themselves, or the response with them."""

from __future__ import annotations

from datetime import timedelta

from rsnotify.format.coverage import is_ahead
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Document
from rsnotify.format.timestamp_precision import postponed
from rsnotify.format.vocabulary import Capability

#: An interval may be rounded to whole seconds.
_ROUNDED = timedelta(seconds=1)


def contradiction_in(document: Document, sent: Instant | None) -> str | None:
    """Return in a clause why the times of a list cannot be true; None if they can.

    Args:
        document: The list.
        sent: The `Date` of the response, if it has one.
    """
    for name, instant in (("at", document.at), ("until", document.until)):
        if instant is not None and sent is not None and is_ahead(instant, sent):
            return (
                f"its {name}, {format_datetime(instant)}, is later than the answer with it, "
                f"of {format_datetime(sent)}"
            )
    if document.capability != Capability.CHANGE_LIST or document.index:
        return None
    outside = [
        resource.uri
        for resource in document.resources
        if (at := resource.changed_at) is not None
        and (
            (document.from_ is not None and postponed(at, _ROUNDED) < document.from_)
            or (document.until is not None and at > postponed(document.until, _ROUNDED))
        )
    ]
    if not outside:
        return None
    return f"{len(outside)} entries, as that of {outside[0]}, lie outside of its interval"
