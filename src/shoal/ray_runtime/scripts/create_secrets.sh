# shellcheck shell=sh
# Runs on the head: creates the cluster's token and key pair unless they exist, and prints the token
# and the public key, one per line. Each file appears complete and with its final mode.
#
#   create_secrets.sh KEY_COMMENT
set -e
comment=$1
umask 077
mkdir -p .shoal
if [ ! -s .shoal/auth_token ]; then
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > .shoal/auth_token.new
  mv .shoal/auth_token.new .shoal/auth_token
fi
case $(cat .shoal/cluster_key.pub 2>/dev/null) in
*" $comment") ;;
*)
  rm -f .shoal/cluster_key .shoal/cluster_key.pub
  ssh-keygen -q -t ed25519 -N '' -C "$comment" -f .shoal/cluster_key
  ;;
esac
printf '%s\n' "$(cat .shoal/auth_token)"
cat .shoal/cluster_key.pub
