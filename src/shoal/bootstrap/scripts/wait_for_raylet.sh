# shellcheck shell=sh
# Returns when the raylet of this node runs.
#
#   wait_for_raylet.sh INSTANCE_ID
variable=RAY_CLOUD_INSTANCE_ID=$1
[ -d /proc/self ] || exit 1
while :; do
  # shellcheck disable=SC2013 # these paths have no spaces
  for file in $(grep -lsx raylet /proc/[0-9]*/comm); do
    ! grep -qszxF "$variable" "${file%comm}environ" || exit 0
  done
  sleep 0.2
done
