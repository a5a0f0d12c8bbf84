"""A gateway, which adds push to origins that lack it, without copying their content."""

from typing import TYPE_CHECKING

from rsnotify.runtime.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rsnotify_gateway.adapter import (
        KnownEntries,
        MissingEntry,
        OriginAdapter,
        OriginBatch,
        OriginTerms,
        OriginType,
        SeenEntry,
    )
    from rsnotify_gateway.client import OriginClient
    from rsnotify_gateway.config import OriginKind, OriginSettings
    from rsnotify_gateway.gateway import Gateway
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rsnotify_gateway.adapter": (
                "KnownEntries",
                "MissingEntry",
                "OriginAdapter",
                "OriginBatch",
                "OriginTerms",
                "OriginType",
                "SeenEntry",
            ),
            "rsnotify_gateway.client": ("OriginClient",),
            "rsnotify_gateway.config": ("OriginKind", "OriginSettings"),
            "rsnotify_gateway.gateway": ("Gateway",),
        },
    )

__all__ = [
    "Gateway",
    "KnownEntries",
    "MissingEntry",
    "OriginAdapter",
    "OriginBatch",
    "OriginClient",
    "OriginKind",
    "OriginSettings",
    "OriginTerms",
    "OriginType",
    "SeenEntry",
]
