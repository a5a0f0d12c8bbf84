"""The page of `rsnotify follow --config`, with many Sources, two behind and one in doubt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rsnotify.sync.doubts import DoubtKind
from rsnotify_subscriber import PushState, Status
from rsnotify_subscriber.fleet.fleet import FollowedSourceStatus, Phase
from tests.browser import Browser
from tests.screenshots.images import both, take
from tests.subscriber.test_status import FixedFleet, serving

SHOWS = ("subscriber/rsnotify_subscriber/commands/static",)

_NAMES = (
    "air quality", "authority file", "city archive", "court records",
    "dissertations", "early prints", "film archive", "geodata", "herbarium", "image archive",
    "journals", "land register", "manuscripts", "music library", "newspapers",
    "observatory", "parliament", "preprints", "river levels", "statistics", "weather",
)  # fmt: skip
_DOUBT = "newspapers"
_UNREADABLE = (
    "the Source's documents could not be read: https://newspapers.example/ does not answer"
)


async def pictures(browser: Browser, folder: Path, _: Path) -> None:
    fleet = FixedFleet(**{name: _followed(name, at) for at, name in enumerate(_NAMES)})
    async with serving(fleet) as url, both(browser, url, 1000, 700) as pages:
        for page in pages:
            await page.click(f"[aria-label^='{_DOUBT}']")
            await page.until("document.querySelector('#facts dd')")
        await take(pages, folder, "fleet")


def _followed(name: str, number: int) -> FollowedSourceStatus:
    now, host = datetime.now(UTC), name.replace(" ", "-")
    status: dict[str, Any] = {
        "resources": 900 + 7919 * (number + 3) % 90_000,
        "through": now - timedelta(milliseconds=300 + 37 * number),
        "compared": now - timedelta(minutes=11 * number),
        "push": PushState.UP,
        "way": ("wss://hub.example/ws",),
        "level": True,
    }
    if name == _DOUBT:
        status |= {
            "level": False,
            "push": PushState.DOWN,
            "doubt_kinds": (DoubtKind.LISTS_UNREADABLE,),
            "doubts": (_UNREADABLE,),
            "behind_since": now - timedelta(minutes=38),
            "through": now - timedelta(minutes=38),
        }
    elif name in ("geodata", "preprints"):
        status |= {
            "level": False,
            "pending": 412,
            "doubt_kinds": (DoubtKind.WAITING,),
            "doubts": ("412 changes that are not applied yet",),
            "behind_since": now - timedelta(seconds=9),
        }
    return FollowedSourceStatus(Phase.FOLLOWED, Status(**status), None, f"https://{host}.example/")
