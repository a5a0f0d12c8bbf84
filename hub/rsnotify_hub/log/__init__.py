"""The logs of topics: durable and ordered; each append is passed on to all delivery channels."""
