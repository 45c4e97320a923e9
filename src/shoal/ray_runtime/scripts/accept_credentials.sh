# shellcheck shell=sh
# Runs on a worker: lets the head log in, and stores the cluster's token, which is on standard
# input. Needs authorize_key.sh.
#
#   accept_credentials.sh PUBLIC_KEY EXIT_CODE
#
# Exits with EXIT_CODE, and changes nothing, if this home directory is the head's: it then holds
# the cluster's key pair.
[ "$(cat .shoal/cluster_key.pub 2>/dev/null)" != "$1" ] || exit "$2"
set -e
umask 077
authorize_key "$1"
mkdir -p .shoal
cat > .shoal/auth_token.new
mv .shoal/auth_token.new .shoal/auth_token
