#!/usr/bin/env bash
# The demo: a Ray cluster on this machine that grows for a program and shrinks after it, and
# everything gone again. However it ends, by itself or by Ctrl-C, the cluster is taken down.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"

finish() {
    code=$?
    trap '' INT TERM # what follows must not be interrupted half-way
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

# At most half a minute: the cluster is taken down in any case.
wait_until_it_has_shrunk() {
    for _ in $(seq 15); do
        [ "$(nodes)" = 1 ] && return
        sleep 1
    done
}

show "shoal up examples/elastic.yaml"
show "shoal exec demo 'python examples/who_ran_what.py'"
show "shoal status demo"
printf '\nnobody uses the workers any more ...\n'
wait_until_it_has_shrunk
show "shoal why"
show "shoal down demo --yes"
show "shoal ls"
