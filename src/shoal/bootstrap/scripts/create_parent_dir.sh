# shellcheck shell=sh
# Creates the parent directory of PATH, which may start with `~/`.
#
#   create_parent_dir.sh PATH
# shellcheck disable=SC2088 # a literal tilde
case $1 in "~/"*) path=$HOME/${1#"~/"} ;; *) path=$1 ;; esac
mkdir -p "${path%/*}"
