#!/bin/sh
# Write .env for docker-compose.yml, with new secrets:
#
#   sh deploy/new-env.sh                                                      on this machine only
#   sh deploy/new-env.sh https://hub.example/ https://source.example/data/    for others
#
# The arguments are the public URL of the hub, and the beginning of the topics of the first Source.
# What .env already contains remains; the script adds only what is missing, such as after an upgrade.
set -eu
umask 077
cd "$(dirname "$0")/.."

url=${1:-} topics=${2:-}
host=${url#*://} host=${host%%[:/]*}
touch .env
chmod 600 .env
if [ $# -gt 0 ] && grep -q '^RSNOTIFY_PUBLIC_URL=.' .env; then
    echo ".env already has settings: change RSNOTIFY_PUBLIC_URL and SOURCE_TOPICS there" >&2
    exit 2
fi
[ -z "$(tail -c 1 .env)" ] || echo >>.env
while IFS= read -r line; do
    name=${line%%=*}
    case $line in
        '' | '#'*) continue ;;
    esac
    ! grep -q "^$name=." .env || continue
    value=${line#*=}
    case $name in
        RSNOTIFY_PUBLIC_URL | CLUSTER_PUBLIC_URL) value=${url:-$value} ;;
        MQTT_PUBLIC_URL) value=mqtt://${host:-127.0.0.1}:1883 ;;
        SOURCE_TOPICS) value=${topics:-$value} ;;
    esac
    [ -n "$value" ] || value=$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n')
    printf '%s=%s\n' "$name" "$value" >>.env
done <.env.example
echo "The settings and secrets are in .env. The dashboard needs ADMIN_TOKEN, and a Source SOURCE_TOKEN."
