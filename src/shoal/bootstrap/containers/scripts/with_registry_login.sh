# shellcheck shell=sh
# Runs a command that can log in to a registry. The credentials are on standard input, in the format
# of docker's credential helpers; they are in no file and on no command line.
#
#   with_registry_login.sh RUNTIME_CONFIG COMMAND...
config=$1
shift
IFS= read -r SHOAL_LOGIN
export SHOAL_LOGIN
umask 077
mkdir -p "$HOME/.shoal"
directory=$(mktemp -d "$HOME/.shoal/login.XXXXXX") || exit 1
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
printf '%s\n' "$config" > "$directory/config.json"
# shellcheck disable=SC2016 # expanded by the helper
printf '%s\n' '#!/bin/sh' '[ "$1" = get ] && printf "%s\n" "$SHOAL_LOGIN"' \
  > "$directory/docker-credential-shoal"
chmod 700 "$directory/docker-credential-shoal"
PATH=$directory:$PATH DOCKER_CONFIG=$directory REGISTRY_AUTH_FILE=$directory/config.json \
  "$@" < /dev/null
