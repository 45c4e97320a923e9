# shellcheck shell=sh
# Runs on the head: creates the cluster's token and key pair unless they exist, and prints the token
# and the public key, one per line. Each file appears complete and with its final mode.
#
#   create_secrets.sh KEY_COMMENT [WHERE]
#
# With WHERE `memory`, new ones are not written to the disk: .shoal has links to files in memory
# until store_secrets.sh runs.
set -e
comment=$1 directory=.shoal
umask 077
mkdir -p .shoal
if [ "$2" = memory ] && [ -d /dev/shm ]; then
  directory=/dev/shm/shoal-secrets-$(id -u)
  # Everyone may create files there: a directory that is someone else's is not used.
  mkdir "$directory" 2>/dev/null || [ -n "$(find "$directory" -prune -type d -user "$(id -u)")" ]
  chmod 700 "$directory"
fi

# show NAME: the file is what .shoal has under its name.
show() {
  [ "$directory" = .shoal ] || ln -sfn "$directory/$1" ".shoal/$1"
}

if [ ! -s .shoal/auth_token ]; then
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$directory/auth_token.new"
  rm -f .shoal/auth_token
  mv "$directory/auth_token.new" "$directory/auth_token"
  show auth_token
fi
case $(cat .shoal/cluster_key.pub 2>/dev/null) in
*" $comment") ;;
*)
  rm -f .shoal/cluster_key .shoal/cluster_key.pub "$directory/cluster_key" "$directory/cluster_key.pub"
  ssh-keygen -q -t ed25519 -N '' -C "$comment" -f "$directory/cluster_key"
  show cluster_key
  show cluster_key.pub
  ;;
esac
printf '%s\n' "$(cat .shoal/auth_token)"
cat .shoal/cluster_key.pub
