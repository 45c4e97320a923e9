"""The line from a machine to its cluster's controller: one HTTP request, spoken by bash, since a
machine need have neither curl nor a Python outside of its container."""

from __future__ import annotations

# Where the controller answers, on the address at which the head's GCS is found. Workers know it
# before there is a controller, and a controller that is started again is found in the same place.
PORT = 6378

# Defines `ask HOST PORT`, which sends the request on its standard input and prints the last line
# of the answer. It fails unless the answer is 200, within five seconds.
ASK = r"""
ask() {
  answer=$(
    timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1" && cat >&3 && cat <&3' "$1" "$2" 2>/dev/null |
    tr -d '\r'
  )
  case $answer in "HTTP/1."?" 200 "*) printf '%s\n' "$answer" | tail -n 1 ;; *) return 1 ;; esac
}
"""

# Ends a second one of the same kind on one machine. $lock is a file below the home directory.
ONLY_ONE = r"""
mkdir -p .shoal
exec 9> ".shoal/$lock"
if command -v flock > /dev/null && ! flock -n 9; then exit 0; fi
"""


def host_of(gcs_address: str) -> str:
    """The host of a HOST:PORT."""
    return gcs_address.rpartition(":")[0]
