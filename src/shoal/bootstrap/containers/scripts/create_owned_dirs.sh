# shellcheck shell=sh
# Creates the directories that do not exist, owned by USER:GROUP.
#
#   create_owned_dirs.sh USER:GROUP DIRECTORY...
owner=$1
shift
for directory; do
  [ -d "$directory" ] || { mkdir -p "$directory" && chown "$owner" "$directory"; } || exit 1
done
