"""HTTP: connections and their limits, and requests to URLs that clients name."""
