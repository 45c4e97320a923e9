# shellcheck shell=sh
# Finds the Python that a node's Ray runs with, and prints shell text that sets
#
#   SHOAL_RAY_PYTHON  the interpreter; `false` if there is none: standard error then has the reason
#   SHOAL_RAY_BIN     the directory of its `ray` program, if it has one
#
# and the variables of Ray's own processes that decide what the interpreter imports and how it
# connects to Ray; with `environment`, all variables that the user's dotfiles and start commands
# gave them.
#
#   find_ray_python.sh INSTANCE_ID python|session|environment|ran [RAY...]
#
# A running Ray names its interpreter on its command line. What was found is kept in
# ~/.shoal/ray-python, for the time when Ray does not run. The last resort, except with `ran`, are
# the `ray` programs that the start commands name, and the one on the PATH. With `session`, it is no
# error that Ray does not run.
id=$1 mode=$2
shift 2
memory=$HOME/.shoal/ray-python
python='' process=''

fail() {
  case "$mode $1" in "session Ray does not run"*) ;; *) echo "$1" >&2 ;; esac
  echo "SHOAL_RAY_PYTHON=false SHOAL_RAY_BIN="
  exit
}

# quoted TEXT: the text as one word for a shell.
quoted() {
  printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"
}

# variable NAME: the value of a variable of Ray's processes.
variable() {
  [ -z "$process" ] || tr '\0' '\n' < "$process/environ" | sed -n "s/^$1=//p"
}

find_running() {
  if [ ! -d /proc/self ]; then # macOS
    # shellcheck disable=SC2009 # pgrep does not print the environment
    python=$(ps -axEww -o command= | grep -F " RAY_CLOUD_INSTANCE_ID=$id " |
      sed -n 's/.* \(--python_worker_command=\)/\1/p' | worker_command | head -n 1)
    return
  fi
  # shellcheck disable=SC2013 # these paths have no spaces
  for file in $(grep -lszxF "RAY_CLOUD_INSTANCE_ID=$id" /proc/[0-9]*/environ); do
    directory=${file%/environ}
    [ "$(cat "$directory/comm" 2>/dev/null)" = raylet ] || continue
    # A host sees the processes of its containers, but not with the paths that they see.
    [ "$(readlink "$directory/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ] || continue
    python=$(tr '\0' '\n' < "$directory/cmdline" | worker_command)
    [ -n "$python" ] || continue
    process=$directory
    return
  done
}

# interpreter PROGRAM: the interpreter of a Python program. Installers that cannot write a path
# into the first line write it into the second: '''exec' "/a path/python" "$0" "$@"
interpreter() {
  line=$(sed -n '1s/^#! *//p; 1q' "$1" 2>/dev/null | tr -d '\000')
  case $line in
  *python*) ;;
  *) line=$(sed -n "2s/^'''exec' \"\\{0,1\\}\\([^\"]*python[^\" ]*\\).*/\\1/p; 2q" "$1" 2>/dev/null) ;;
  esac
  case $line in
  */env\ *python*)
    name=${line##*/env }
    command -v "${name##* }"
    ;;
  *python*) printf '%s\n' "$line" ;;
  *) # another program that starts Ray, such as a pyenv shim: its neighbour has the same Python
    for name in python python3; do
      [ ! -x "${1%/*}/$name" ] || { printf '%s\n' "${1%/*}/$name" && break; }
    done
    ;;
  esac
}

has_ray() {
  "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("ray") is None)' 2>/dev/null
}

# ray_directory: where the `ray` program of this interpreter is.
ray_directory() {
  [ ! -x "${python%/*}/ray" ] || { printf %s "${python%/*}" && return; }
  found=$(PATH=$(variable PATH):$HOME/.local/bin command -v ray)
  case $found in /*) printf %s "${found%/*}" ;; esac
}

settings() {
  for name in PYTHONPATH PYTHONHOME PYTHONUSERBASE LD_LIBRARY_PATH \
    RAY_USE_TLS RAY_TLS_SERVER_CERT RAY_TLS_SERVER_KEY RAY_TLS_CA_CERT; do
    value=$(variable "$name")
    [ -z "$value" ] || printf 'export %s=%s\n' "$name" "$(quoted "$value")"
  done
  printf 'SHOAL_RAY_BIN=%s\n' "$(quoted "$(ray_directory)")"
  printf 'SHOAL_RAY_PYTHON=%s\n' "$(quoted "$python")"
}

# environment: the variables of Ray's processes, except those of its login and of Ray itself.
environment() {
  # shellcheck disable=SC2016 # expanded by the inner shell
  xargs -0 sh -c 'quote=$1 escape=$2
shift 2
for each; do
  name=${each%%=*} value=${each#*=}
  case $name in
  "" | [0-9]* | *[!A-Za-z0-9_]* | RAY_* | SHOAL_* | SSH_* | SPT_NOENV | SHLVL | PWD | OLDPWD | _) continue ;;
  esac
  case $value in *"$quote"*) value=$(printf %s "$value" | sed "$escape") ;; esac
  printf "export %s=%s%s%s\n" "$name" "$quote" "$value" "$quote"
done' sh "'" "s/'/'\\\\''/g" < "$process/environ"
}

find_running
if [ -n "$python" ]; then
  [ -x "$python" ] || fail "Ray's environment has changed: it runs with $python, which no longer exists"
  text=$(settings)
  if [ "$text" != "$(cat "$memory" 2>/dev/null)" ]; then
    mkdir -p "${memory%/*}" && printf '%s\n' "$text" > "$memory.$$" && mv "$memory.$$" "$memory"
  fi
  [ "$mode" != environment ] || [ -z "$process" ] || environment
  printf '%s\n' "$text"
  exit
fi
if [ -r "$memory" ]; then
  # shellcheck disable=SC1090 # the text above
  python=$(. "$memory" && printf %s "$SHOAL_RAY_PYTHON")
  if [ -x "$python" ] && has_ray "$python"; then
    cat "$memory"
    exit
  fi
  gone="; $python, with which it ran before, has no Ray any more"
fi
[ "$mode" != ran ] || fail "Ray does not run here${gone:-}"
for program in "$@" ray; do
  # shellcheck disable=SC2088,SC2016 # as the user has written it, and no shell has expanded it
  case $program in '~/'* | '$HOME/'*) program=$HOME/${program#*/} ;; esac
  program=$(command -v "$program") || continue
  python=$(interpreter "$program")
  if [ -n "$python" ] && [ -x "$python" ] && has_ray "$python"; then
    settings
    exit
  fi
done
fail "Ray does not run here${gone:-}"
