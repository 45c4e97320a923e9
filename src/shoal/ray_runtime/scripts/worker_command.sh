# shellcheck shell=sh
# worker_command: from standard input, the interpreter in the command with which a raylet starts its
# workers, with quotes around it if there is a space in it.
worker_command() {
  sed -n 's/^--python_worker_command="\([^"]*\)".*/\1/p; t
s/^--python_worker_command=\([^" ][^ ]*\).*/\1/p'
}
