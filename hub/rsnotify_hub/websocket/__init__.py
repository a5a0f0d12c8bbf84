"""`GET /ws`: fragments in, and out to live subscribers."""
