"""HTTP: listening, connections and their limits, middleware, and the client for URLs of clients."""
