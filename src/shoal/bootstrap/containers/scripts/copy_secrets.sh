# shellcheck shell=sh
# Copies the cluster's secrets from the host into a container, through a pipe: the token, and on the
# head the cluster key.
#
#   copy_secrets.sh RUNTIME CONTAINER ROLE SCRIPT
#
# SCRIPT is the text of receive_secrets.sh.
runtime=$1 container=$2 role=$3 script=$4
cd || exit # a dotfile may have changed the directory
{
  cat .shoal/auth_token && echo
  if [ "$role" = head ]; then cat .shoal/cluster_key.pub .shoal/cluster_key; fi
} | "$runtime" exec -i "$container" sh -c "$script" receive_secrets.sh "$role"
