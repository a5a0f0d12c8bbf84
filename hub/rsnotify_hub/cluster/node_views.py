"""Which nodes are alive, as one node sees it.

A node is alive while its record changes. If the store was away, all nodes were silent. So a node
that did not see its own renewals takes the silence of the others in that time for no sign of death,
and all take again what they owned.
"""

from __future__ import annotations

from msgspec import Struct

from rsnotify_hub.cluster.pace import ClusterPace


class _NodeView(Struct):
    first_seen: float
    last_seen: float
    is_draining: bool
    bridges: bool


class NodeViews:
    """The records of all nodes, as last seen by one of them."""

    def __init__(self, node: str, pace: ClusterPace) -> None:
        self._node = node
        self._pace = pace
        self._views: dict[str, _NodeView] = {}

    def seen(self, node: str, *, is_draining: bool, bridges: bool, now: float) -> None:
        """Note that the record of a node was written."""
        known = self._views.get(node)
        if known is None:
            self._views[node] = _NodeView(now, now, is_draining, bridges)
            return
        if node == self._node and now - known.last_seen >= self._pace.fence_seconds:
            self._excuse_silence(known.last_seen, now)
        known.last_seen = now
        known.is_draining = is_draining

    def _excuse_silence(self, since: float, now: float) -> None:
        """Let the nodes that were alive before this one saw nothing have until now."""
        for view in self._views.values():
            if since - view.last_seen < self._pace.death_seconds:
                view.last_seen = max(view.last_seen, now)

    def gone(self, node: str) -> None:
        """Note that the record of a node was deleted."""
        self._views.pop(node, None)

    def is_current(self, now: float) -> bool:
        """Return whether this node sees its own renewals, and has seen who else is there."""
        own = self._views.get(self._node)
        return (
            own is not None
            and now - own.last_seen < self._pace.fence_seconds
            and now - own.first_seen >= self._pace.settle_seconds
        )

    def candidates(self, now: float) -> set[str]:
        """Return the nodes that shards are assigned to.

        A record that was never renewed since this node saw it may be that of a dead node. All that
        this node saw while it settled itself have started before it, or with it.
        """
        settle = self._pace.settle_seconds
        settled = max(now - settle, self._views[self._node].first_seen + settle)
        living = now - self._pace.death_seconds
        return {
            name
            for name, view in self._views.items()
            if not view.is_draining
            and view.last_seen > max(living, view.first_seen)
            and view.first_seen <= settled
        }

    def bridging(self, nodes: set[str]) -> set[str]:
        """Return those of some nodes that can run the bridge to the MQTT broker."""
        return {node for node in nodes if self._views[node].bridges}

    def is_alive(self, node: str, now: float) -> bool:
        """Return whether a node has renewed its record lately."""
        view = self._views.get(node)
        return view is not None and now - view.last_seen < self._pace.death_seconds

    def living(self, now: float) -> list[str]:
        return [node for node in self._views if self.is_alive(node, now)]

    def forgettable(self, now: float) -> list[str]:
        """Return the nodes that have been dead for so long that their records may be deleted."""
        seconds = self._pace.forget_seconds
        return [node for node, view in self._views.items() if now - view.last_seen >= seconds]

    def is_draining(self, node: str) -> bool:
        """Return whether a node is about to stop."""
        view = self._views.get(node)
        return view is not None and view.is_draining
