# shellcheck shell=sh
# head_directory OWNER: print where the head of this cluster keeps its connections, and
# every other host notes which of its sshd processes serves the head.
head_directory() {
  echo "/tmp/shoal-$(id -u)-$(printf %s "$1" | sha256sum | cut -c1-8)"
}
# own_sshd: print the process id and start time of the sshd process that serves this session,
# nothing if there is none.
own_sshd() {
  pid=$$ name=''
  while [ "$pid" -gt 1 ] && [ -r "/proc/$pid/status" ]; do
    while read -r key value; do
      case $key in Name:) name=$value ;; PPid:) parent=$value ;; esac
    done < "/proc/$pid/status"
    case $name in sshd*) echo "$pid $(start_time "$pid")" && return ;; esac
    pid=$parent
  done
}
# start_time PID: print when a process started, in clock ticks.
start_time() {
  read -r fields < "/proc/$1/stat" || return
  # shellcheck disable=SC2086 # separate words
  set -- ${fields##*) }
  echo "${20}"
}
