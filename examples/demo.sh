#!/usr/bin/env bash
# The demo: a Ray cluster on this machine, a program on it, and everything gone again. However
# it ends, by itself or by Ctrl-C, the cluster is taken down.
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

show "shoal up --cluster-name demo"
show "shoal exec demo 'python examples/who_ran_what.py'"
show "shoal status demo"
show "shoal down demo --yes"
show "shoal ls"
