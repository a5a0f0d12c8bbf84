"""HTTP: connections and their limits, middleware, and requests to URLs that clients name."""
