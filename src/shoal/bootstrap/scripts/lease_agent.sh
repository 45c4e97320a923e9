# shellcheck shell=sh
# Renews this node's lease with the controller, and runs ON_EXPIRED when the lease expires.
#
#   lease_agent.sh HEAD CONTROLLER_PORT GCS_PORT ROLE LEASE_S ON_EXPIRED \
#     POLLS_PER_LEASE MAX_PAUSE_S CONTROLLER_WAIT_S NO_CONTROLLER_FILE
#
# LEASE_S is the initial length of the lease (0: never expires); each answer of the controller
# replaces it. Needs controller_request.sh.
#
# Until the first answer of a controller, a reachable GCS on the head also renews the lease: for
# CONTROLLER_WAIT_S seconds, and without limit if the cluster has no controller
# (NO_CONTROLLER_FILE exists) or if a firewall drops packets to the controller's port (a head
# without a controller refuses the connection instead). It must not renew without limit in
# general: `shoal up` may have died before it started the controller, while Ray on the head runs on.
#
# `.shoal/lease` holds the last length that the controller granted; its modification time is when.
head=$1 controller_port=$2 gcs_port=$3 role=$4 lease=$5 on_expired=$6
polls_per_lease=$7 max_pause=$8 controller_wait=$9
shift 9
no_controller_file=$1

exit_if_running lease.lock

now() {
  if read -r uptime _ 2>/dev/null < /proc/uptime; then echo "${uptime%%.*}"; else date +%s; fi
}

# connect PORT: open a TCP connection to the head; print the error.
connect() {
  # shellcheck disable=SC2016 # expanded by the inner bash
  LC_ALL=C timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$head" "$1" 2>&1
}

controller_is_firewalled() {
  if error=$(connect "$controller_port"); then return 1; fi
  case $error in *refused*) return 1 ;; esac
}

gcs_may_renew() {
  [ -e "$no_controller_file" ] || [ $(($(now) - started)) -lt "$controller_wait" ] ||
    controller_is_firewalled
}

has_answered=''
started=$(now)
renewed=$started
while
  pause=$((lease / polls_per_lease))
  remaining=$((renewed + lease - $(now)))
  [ "$remaining" -ge "$pause" ] || pause=$remaining
  if [ "$lease" -le 0 ] || [ "$pause" -gt "$max_pause" ]; then pause=$max_pause; fi
  [ "$pause" -ge 1 ] || pause=1
  sleep "$pause"
do
  if granted=$(
    printf 'GET /lease/%s HTTP/1.0\r\n\r\n' "$role" | controller_request "$head" "$controller_port"
  ); then
    case $granted in '' | *[!0-9]*) ;; *) lease=$granted ;; esac
    has_answered=yes renewed=$(now)
    echo "$lease" > .shoal/lease
  elif [ -z "$has_answered" ] && connect "$gcs_port" > /dev/null && gcs_may_renew; then
    renewed=$(now)
  elif [ "$lease" -gt 0 ] && [ $(($(now) - renewed)) -ge "$lease" ]; then
    # ON_EXPIRED may kill every process that carries this node's id, so it must not carry it.
    exec env -u RAY_CLOUD_INSTANCE_ID setsid sh -c "$on_expired"
  fi
done
