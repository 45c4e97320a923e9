# shellcheck shell=bash
# Runs one command for exec_protocol.py. Sent on one line: see `on_one_line` in __init__.py.
#
# Standard input has, for each command, a line for other shells, "MARK LINES BYTES BASH_OPTIONS",
# then as many lines of program and as many bytes of input for it. If a dotfile replaces the login
# shell with another one, that one reads the first line, which makes it exit. The script prints MARK
# on both streams; what was printed before comes from the login shell. If standard input is closed
# by then, the client is gone and the program does not start. The program runs as a job with its own
# process group. A second job waits until standard input closes and then ends the first; once it has
# started doing so, SIGTERM no longer stops it. At the end come the marks again, with the exit code:
# what a daemon prints later is not the command's. Only then the next command arrives, if any.
#
# A command with options gets a login shell. If a new session would differ from this one, because
# the shell that sshd starts would read another .bashrc or is not bash, only the first command can
# be such a one: for a later one the script exits before the mark, and the client opens a session.

# Stays where it is if there is no home directory.
# shellcheck disable=SC2164
cd 2>/dev/null;
set -m;
nl=$(printf "\012x");
nl=${nl%x};
exec 5<&0;
code=1;
first=1;
{ rc=$(<~/.bashrc); } 2>/dev/null;
while read -r mark && read -r mark lines bytes options; do
  if [ -n "$options" ] && [ -z "$first" ]; then
    case $SHELL in */bash) ;; *) exit 1;; esac;
    { [ "$(<~/.bashrc)" = "$rc" ]; } 2>/dev/null || exit 1;
  fi;
  first="";
  program="";
  while [ "$lines" -gt 0 ]; do
    IFS= read -r line || exit 1;
    program=$program$line$nl;
    lines=$((lines-1));
  done;
  echo "$mark";
  echo "$mark" >&2;
  if [ "$bytes" = 0 ]; then
    exec 3</dev/null;
  else
    spool=$(mktemp 2>/dev/null || TMPDIR=/tmp mktemp 2>/dev/null || TMPDIR=$HOME mktemp) || exit 1;
    # Written below, before it is read.
    # shellcheck disable=SC2094
    exec 6>"$spool" 3<"$spool";
    rm -f "$spool";
    head -c "$bytes" >&6 || exit 1;
    # Written below, before it is read.
    # shellcheck disable=SC2094
    exec 6>&-;
  fi;
  read -r -t 0 -u 5 && exit 1;
  # An interactive shell without a terminal complains before it reads a word, so its errors go to
  # /dev/null until the program redirects them to 4. The program itself is on 7.
  # shellcheck disable=SC2086 # several options
  BASH_ENV="" bash --noprofile --norc $options -c "eval \"\$(cat <&7)\"" 4>&2 2>/dev/null 7<<<"$program" <&3 3<&- 5<&- &
  job=$!;
  {
    # Not cat: it could outlive this job for a moment, and would read the next command.
    while read -r line; do :; done <&5;
    trap "" TERM;
    kill -HUP -- -$job;
    kill -TERM -- -$job;
    n=0;
    while [ $n -lt 30 ] && kill -0 -- -$job; do
      sleep 0.1;
      n=$((n+1));
    done;
    kill -KILL -- -$job;
  } 2>/dev/null &
  guard=$!;
  wait $job 2>/dev/null;
  code=$?;
  kill -TERM -- -$guard 2>/dev/null;
  wait $guard 2>/dev/null;
  exec 3<&-;
  echo "$mark $code";
  echo "$mark $code" >&2;
done;
exit $code
