# shellcheck shell=sh
# Runs a program of this directory with the Python that the node's Ray runs with, isolated from the
# job's code:
#
#   launch.sh PROGRAM [ARGUMENT...]
#
# The raylet, which is an ancestor of all processes of a job, has its Python on its command line.
here=${0%/*} program=$1
shift
process=${RAY_RAYLET_PID:-$PPID} python=''
while [ -z "$python" ] && [ "${process:-1}" -gt 1 ]; do
  if [ -r "/proc/$process/cmdline" ]; then
    python=$(tr '\0' '\n' < "/proc/$process/cmdline" | worker_command)
    process=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$process/status")
  else # macOS
    python=$(ps -ww -o command= -p "$process" 2>/dev/null |
      sed -n 's/.* \(--python_worker_command=\)/\1/p' | worker_command)
    process=$(ps -o ppid= -p "$process" 2>/dev/null | tr -d ' ')
  fi
done
[ -x "$python" ] || python=$(command -v python3 || command -v python)
exec "$python" -I "$here/$program" "$@"
