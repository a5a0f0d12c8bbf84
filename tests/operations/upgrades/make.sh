#!/usr/bin/env bash
# Make COMMIT.tar.xz: the states of a Source, a hub and a Destination that the version of a commit
# leaves behind. test_upgrade.py puts its own ports where these have 28000 (Source), 28080 (hub) and
# 28099 (a callback, which is gone).
#
#   tests/operations/upgrades/make.sh 9299f855    the first version 0.1.0 with all three
set -euo pipefail
root=$(git rev-parse --show-toplevel) here=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$here"' EXIT
mkdir "$here/project" "$here/states"
git -C "$root" archive "$1" | tar x -C "$here/project"
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q -c "$root/constraints.txt" "$here/project"
rsnotify=$here/venv/bin/rsnotify
cd "$here/states"
mkdir data
for name in a b c d; do echo "$name, first" >data/$name.txt; done
"$here/venv/bin/python" - <<'PYTHON' &
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

class Callback(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(parse_qs(urlsplit(self.path).query)["hub.challenge"][0].encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

HTTPServer(("127.0.0.1", 28099), Callback).serve_forever()
PYTHON
"$rsnotify" hub --port 28080 --data hub --allow-private-addresses &
hub=$!
sleep 3
"$rsnotify" source data --base-url http://127.0.0.1:28000/ --port 28000 --hub http://127.0.0.1:28080/ &
source=$!
sleep 3
curl --fail http://127.0.0.1:28080/websub --data-urlencode hub.mode=subscribe \
  --data-urlencode hub.topic=http://127.0.0.1:28000/channel.xml \
  --data-urlencode hub.callback=http://127.0.0.1:28099/ --data-urlencode hub.lease_seconds=864000
"$rsnotify" follow http://127.0.0.1:28000/ copy &
follow=$!
sleep 3
for name in a b; do echo "$name, second" >data/$name.txt; done
rm data/c.txt
echo new >data/e.txt
sleep 3
kill -INT $follow
wait $follow || true
echo "d, second" >data/d.txt # the Destination does not have this
sleep 3
kill -INT $source $hub
wait $source $hub || true
tar cJf "$root/tests/operations/upgrades/$1.tar.xz" --owner=0 --group=0 .
