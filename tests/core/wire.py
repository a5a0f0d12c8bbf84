"""A Follower whose documents are answered by the test, one by one."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from rsnotify.errors import RsnotifyError
from rsnotify.format.model import Document
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Action, DocumentKind, Fetch
from rsnotify.sync.follower import Follower
from rsnotify.sync.progress import ComparedList, Progress
from tests.core.world import PACE


class Wire:
    """A Follower whose documents are answered by the test."""

    def __init__(
        self,
        offer: Offer,
        progress: Progress | None = None,
        *,
        last_list: ComparedList | None = None,
        **pace: float,
    ) -> None:
        paced = replace(PACE, **pace)
        self.follower = Follower(offer, progress, pace=paced, random=Random(1), last_list=last_list)
        self.now = 0.0
        self.actions: list[Action] = self.follower.start(self.now)

    def requested(self) -> list[DocumentKind]:
        return [action.kind for action in self.actions if isinstance(action, Fetch)]

    def answer(self, document: Document | RsnotifyError) -> None:
        (fetch,) = [action for action in self.actions if isinstance(action, Fetch)]
        if isinstance(document, Document):
            self.actions = self.follower.fetched(fetch, document, self.now)
        else:
            self.actions = self.follower.fetch_failed(fetch, document, self.now)

    def wait(self) -> float:
        before, self.now = self.now, self.follower.wakeup or 0.0
        self.actions = self.follower.tick(self.now)
        return self.now - before
