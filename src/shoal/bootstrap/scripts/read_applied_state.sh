# shellcheck shell=sh
# Prints the applied state of this node on one line, `{}` if there is none.
#
#   read_applied_state.sh FILE [MOUNT_POINT...]
#
# State that was applied to a volume is void once the volume is gone, so nothing counts unless every
# MOUNT_POINT is mounted.
file=$1
shift
for mount_point; do mountpoint -q "$mount_point" || exec echo '{}'; done
cat "$file" 2>/dev/null || echo '{}'
