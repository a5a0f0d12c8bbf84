#!/bin/sh
# Start the broker with the passwords of the environment, hashed and in memory only.
set -eu
umask 077

check() {
    case $2 in
        *[!A-Za-z0-9_-]*) echo "$1 may have letters, digits, _ and - only" >&2; exit 2 ;;
    esac
    [ ${#2} -ge 16 ] || { echo "$1 needs 16 characters or more" >&2; exit 2; }
}
check MQTT_HUB_PASSWORD "${MQTT_HUB_PASSWORD:-}"
check MQTT_SUBSCRIBER_PASSWORD "${MQTT_SUBSCRIBER_PASSWORD:-}"

printf '%s\n' "hub:$MQTT_HUB_PASSWORD" "subscriber:$MQTT_SUBSCRIBER_PASSWORD" >/tmp/passwords
unset MQTT_HUB_PASSWORD MQTT_SUBSCRIBER_PASSWORD
mosquitto_passwd -U /tmp/passwords
cat /mosquitto/config/acl >/tmp/acl
exec mosquitto -c /mosquitto/config/mosquitto.conf
