"""The change memory: `GET /topics`, the list of topics and the past changes of each."""
