"""Access control: grants of publishers and admins, rate limits, and the clients behind proxies."""
