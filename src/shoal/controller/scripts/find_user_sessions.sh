#!/bin/sh
# Usage: find_user_sessions NAME VALUE
# Succeeds if any process of this user has NAME=VALUE in its environment. The two are separate
# arguments, so that `ps` does not report this script itself.
variable=$1=$2
if [ -d /proc/self ]; then
  grep -qszxF "$variable" /proc/[0-9]*/environ
else
  case $(ps -axEww -o command=) in
    *" $variable "*) exit 0 ;;
    *) exit 1 ;;
  esac
fi
