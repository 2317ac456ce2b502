#!/bin/bash
# run.sh: engine and nginx in the foreground, until Ctrl-C or until one dies.
#
# What `make run` starts.  It takes BUILD, NGINX, PORT, MODEL and THREADS from
# the environment and conf/nginx.conf as it is, but for the paths and the port
# that it replaces.  Logs and the configuration in force lie under run/.
#
# The socket and nginx's temporary files lie elsewhere: nginx's workers run as
# another user when its master is root, and a checkout may be in a directory
# that this user must not enter.

set -eu

cd "$(dirname "$0")/.."
here=$PWD
build=$here/${BUILD:-build}
nginx=${NGINX:-nginx}
port=${PORT:-8080}
model=$(realpath "${MODEL:?names a GGUF file}")
engine_args=(--model "$model")
[[ -n ${THREADS:-} ]] && engine_args+=(--threads "$THREADS")

die() {
    echo "$*" >&2
    exit 1
}

[[ -r $model ]] || die "cannot read the model $model"
[[ $port =~ ^[0-9]+$ && $port -gt 0 && $port -lt 65536 ]] ||
    die "PORT=$port is not a port"
(: <> "/dev/tcp/127.0.0.1/$port") 2> /dev/null &&
    die "port $port is taken; PORT=n uses another"

# ------------------------------------------------------------ directories --

run=$here/run
mkdir -p "$run"
shared=$(mktemp -d "/tmp/deepinfer.XXXXXX")
chmod 755 "$shared"
socket=$shared/engine.sock
engine_pid=
nginx_pid=

# Workers of root's nginx are someone else; the engine lets their group in.
user_line=
if [[ $EUID -eq 0 ]]; then
    user=www-data
    id -u "$user" > /dev/null 2>&1 || user=nobody
    group=$(id -gn "$user")
    engine_args+=(--group "$group")
    user_line="user $user $group;"
fi

# ------------------------------------------------------------------- stop --

# Ask, wait, insist.
end() {
    local pid=$1 seconds=$2 i

    kill -TERM "$pid" 2> /dev/null || return 0
    for ((i = 0; i < seconds * 20; i++)); do
        kill -0 "$pid" 2> /dev/null || return 0
        sleep 0.05
    done
    kill -KILL "$pid" 2> /dev/null || true
}

# nginx first, so that no request finds the engine gone.
stop() {
    trap - EXIT
    trap '' INT TERM HUP
    [[ -n $nginx_pid ]] && end "$nginx_pid" 5
    [[ -n $engine_pid ]] && end "$engine_pid" 10
    wait 2> /dev/null || true
    rm -rf "$shared"
}

trap stop EXIT
trap 'echo; echo "stopping"; exit 0' INT TERM HUP

failed() {
    echo "$1; the end of $2:" >&2
    tail -n 15 "$2" >&2
    exit 1
}

# ------------------------------------------------------------------ start --

# `wait_for SECONDS PID TEST...`: until the test is true; fails when time is
# over or the process has gone.
wait_for() {
    local tries=$(($1 * 20)) pid=$2
    shift 2

    until "$@"; do
        kill -0 "$pid" 2> /dev/null && ((tries-- > 0)) || return 1
        sleep 0.05
    done
}

healthy() {
    curl -fs -o /dev/null --max-time 2 "http://127.0.0.1:$port/health"
}

echo "  ENGINE  $model"
"$build/deepinfer-engine" serve "${engine_args[@]}" \
    --listen "unix:$socket" > "$run/engine.log" 2>&1 &
engine_pid=$!
wait_for 120 "$engine_pid" test -S "$socket" ||
    failed "the engine did not start" "$run/engine.log"

# What conf/nginx.conf says about an installed system, said about this one.
temp=
for kind in client_body proxy fastcgi uwsgi scgi; do
    temp+="    ${kind}_temp_path $shared/$kind;\n"
done
sed -e "s|^load_module .*|load_module $build/ngx_http_deepinfer_module.so;|" \
    -e "s|^user .*|$user_line|" \
    -e "s|^pid .*|pid $run/nginx.pid;|" \
    -e "s|^error_log .*|error_log $run/error.log notice;|" \
    -e "s|^\( *access_log \)/[^ ]*|\1$run/access.log|" \
    -e "s|^http {|&\n$temp|" \
    -e "s|^\( *model  *\)/.*|\1$model;|" \
    -e "s|^\( *engine  *\)unix:.*|\1unix:$socket;|" \
    -e "s|^\( *listen  *\)8080|\1$port|" \
    conf/nginx.conf > "$run/nginx.conf"

echo "  NGINX   port $port, logs in run/"
: > "$run/error.log"
"$nginx" -p "$run/" -c "$run/nginx.conf" -e "$run/error.log" \
    -g 'daemon off;' > "$run/nginx.out" 2>&1 &
nginx_pid=$!
wait_for 30 "$nginx_pid" healthy || {
    cat "$run/nginx.out" >&2
    failed "nginx did not start, or does not answer" "$run/error.log"
}

cat <<END

Serving on port $port.  Ctrl-C stops.  Try:

curl -N localhost:$port/v1/chat/completions \\
  -H 'Content-Type: application/json' -d '{
  "model": "default", "stream": true, "temperature": 0,
  "messages": [{"role": "user", "content": "Name the capital of France."}]
}'

END

# Either one's end is the end.
wait -n "$engine_pid" "$nginx_pid" || true
if kill -0 "$nginx_pid" 2> /dev/null; then
    failed "the engine died" "$run/engine.log"
fi
failed "nginx died" "$run/error.log"
