"""Push: connections to hubs and brokers, the choice between them, and the transports."""
