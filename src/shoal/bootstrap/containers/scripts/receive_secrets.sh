# shellcheck shell=sh
# Runs inside a container: stores the secrets that copy_secrets.sh sends on standard input.
#
#   receive_secrets.sh ROLE
set -e
role=$1
umask 077
cd
mkdir -p .shoal
IFS= read -r token
printf %s "$token" > .shoal/auth_token.new
mv .shoal/auth_token.new .shoal/auth_token
[ "$role" = head ] || exit 0
IFS= read -r public_key
cat > .shoal/cluster_key.new
mv .shoal/cluster_key.new .shoal/cluster_key
printf '%s\n' "$public_key" > .shoal/cluster_key.pub
