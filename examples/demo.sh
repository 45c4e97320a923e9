#!/usr/bin/env bash
# The demo: a Ray cluster on this machine that scales up for a program and down after it. The
# cluster is removed at the end, also after Ctrl-C.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"

finish() {
    code=$?
    trap '' INT TERM # do not interrupt the cleanup
    if [ "$code" != 0 ]; then
        shoal down demo --yes || true
    fi
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

show() {
    printf '\n\033[1m$ %s\033[0m\n' "$1"
    eval "$1"
}

nodes() {
    shoal status demo --json | python -c 'import json, sys; print(len(json.load(sys.stdin)["nodes"]))'
}

# At most half a minute: the cluster is removed in any case.
wait_for_scale_down() {
    for _ in $(seq 15); do
        [ "$(nodes)" = 1 ] && return
        sleep 1
    done
}

show "shoal up examples/elastic.yaml"
show "shoal exec demo 'python examples/who_ran_what.py'"
show "shoal status demo"
printf '\nwaiting until the idle workers are terminated ...\n'
wait_for_scale_down
show "shoal why"
show "shoal down demo --yes"
show "shoal ls"
