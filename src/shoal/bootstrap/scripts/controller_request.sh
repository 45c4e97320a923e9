# shellcheck shell=sh
# Functions for the agents that run on nodes.

# controller_request HOST PORT: send the HTTP request on standard input, print the last line of the
# response. Fails unless the response has status 200 and arrives within five seconds. Uses bash,
# because a host may have neither curl nor, outside its container, Python.
controller_request() {
  response=$(
    # shellcheck disable=SC2016 # expanded by the inner bash
    timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1" && cat >&3 && cat <&3' "$1" "$2" 2>/dev/null |
      tr -d '\r'
  )
  case $response in
  "HTTP/1."?" 200 "*) printf '%s\n' "$response" | tail -n 1 ;;
  *) return 1 ;;
  esac
}

# exit_if_running LOCK: exit if another process on this host holds the lock file ~/.shoal/LOCK.
exit_if_running() {
  mkdir -p .shoal
  exec 9> ".shoal/$1"
  if command -v flock > /dev/null && ! flock -n 9; then exit 0; fi
}
