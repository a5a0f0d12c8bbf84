"""The durable, ordered logs of topics. Each append is passed on to all delivery channels."""
