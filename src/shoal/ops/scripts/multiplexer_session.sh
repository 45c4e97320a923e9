#!/usr/bin/env bash
# Starts a screen or tmux session, or attaches to one.
#
#   multiplexer_session.sh PROGRAM detached COMMAND   run COMMAND in a new session
#   multiplexer_session.sh PROGRAM attached           attach to a session, or start one
#   multiplexer_session.sh PROGRAM new                start a session and attach to it
#
# The multiplexer's server may be older than the cluster, so a session does not inherit this
# environment. It reads PATH and the RAY_ and SHOAL_ variables from a file, which it deletes.
# Exits with 69 if PROGRAM is not installed.

program=$1 mode=$2 command=${3-}

command -v "$program" >/dev/null || exit 69

if [ "$mode" = attached ]; then
  case $program in
    screen) if screen -ls | grep -q '[(].*tached)'; then exec screen -x; fi ;;
    tmux) if tmux has-session 2>/dev/null; then exec tmux attach-session; fi ;;
  esac
fi

file=$(mktemp) || exit 1
# The session expands the variables in these strings, not this script.
# shellcheck disable=SC2016
{
  printf 'rm -f -- %q\n' "$file"
  declare -p PATH "${!RAY_@}" "${!SHOAL_@}"
  echo cd
  if [ -n "$command" ]; then
    printf '(\n%s\n)\necho "[ended with exit code $?]"\n' "$command"
  fi
  echo 'exec "${SHELL:-bash}" -l'
} >"$file"

# shellcheck disable=SC2016
session=(bash --login -i -c '. "$0"' "$file")
case $program-$mode in
  screen-detached) exec screen -L -dm "${session[@]}" ;;
  tmux-detached) exec tmux new-session -d "${session[@]}" ;;
  screen-*) exec screen -L "${session[@]}" ;;
  tmux-*) exec tmux new-session "${session[@]}" ;;
esac
