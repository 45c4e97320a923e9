# shellcheck shell=sh
# Runs a program of this directory with the Python that the node's Ray runs with, isolated from the
# job's code:
#
#   launch.sh PROGRAM [ARGUMENT...]
#
# The raylet, whose process all of a job's descend from, has its Python on its command line.
here=${0%/*} program=$1
shift
raylet=${RAY_RAYLET_PID:-$PPID}

if [ -r "/proc/$raylet/cmdline" ]; then
  python=$(tr '\0' '\n' < "/proc/$raylet/cmdline" | worker_command)
else # macOS
  python=$(ps -ww -o command= -p "$raylet" 2>/dev/null |
    sed -n 's/.* \(--python_worker_command=\)/\1/p' | worker_command)
fi
[ -x "$python" ] || python=$(command -v python3 || command -v python)
exec "$python" -I "$here/$program" "$@"
