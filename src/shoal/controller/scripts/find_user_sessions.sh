#!/bin/sh
# Usage: find_user_sessions NAME=VALUE
# Succeeds if any process of this user has the variable in its environment.
if [ -d /proc/self ]; then
  grep -qszxF "$1" /proc/[0-9]*/environ
else
  # shellcheck disable=SC2009  # pgrep does not match the environment
  ps -axEww -o command= | grep -qF " $1 "
fi
