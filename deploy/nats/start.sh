#!/bin/sh
# Start a NATS server of docker-compose.yml, unless it would accept everybody.
set -eu

# The variable has quotes: see nats.conf.
[ ${#NATS_PASSWORD} -ge 18 ] || { echo "NATS_PASSWORD needs 16 characters or more" >&2; exit 2; }
exec nats-server --config /etc/nats/nats.conf
