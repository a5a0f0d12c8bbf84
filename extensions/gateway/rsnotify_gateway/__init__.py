"""A gateway: makes a Source with push of origins that have none, without copying content."""

from typing import TYPE_CHECKING

from rsnotify.runtime.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rsnotify_gateway.config import OriginKind, OriginSettings
    from rsnotify_gateway.gateway import Gateway
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rsnotify_gateway.config": ("OriginKind", "OriginSettings"),
            "rsnotify_gateway.gateway": ("Gateway",),
        },
    )

__all__ = ["Gateway", "OriginKind", "OriginSettings"]
