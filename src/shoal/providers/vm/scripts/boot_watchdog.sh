# shellcheck shell=sh
# Arguments: login user, lease seconds, poll seconds, command that ends the instance. Runs as root.
user=$1 lease=$2 pause=$3 end=$4
uptime_s() { cut -d. -f1 /proc/uptime; }
has_session() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -q '^sshd[^:]*: [^ ]*@'; }
watch() {
  home=$(getent passwd "$user" | cut -d: -f6)
  last=$(uptime_s)
  while sleep "$pause"; do
    [ ! -e "$home/.shoal/lease.lock" ] || exit 0
    if has_session; then
      last=$(uptime_s)
    elif [ $(($(uptime_s) - last)) -ge "$lease" ]; then
      sh -c "$end"
    fi
  done
}
watch < /dev/null > /dev/null 2>&1 &
