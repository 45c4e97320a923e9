# shellcheck shell=bash
# First part of the rsync_*.sh scripts, which start rsync on the remote host. Sets `path` to the
# remote path and "$@" to the arguments of rsync without its last, for which `path` stands in: so
# the path is not subject to any shell, or to the quoting rules of any version of rsync.
#
# $1 is "", "~" or "~USER", $2 the rest of the path in octal, and the others are from rsync.

# shellcheck disable=SC2164
cd 2>/dev/null;
home=;
if [ -n "$1" ]; then eval "home=$1"; fi;
# The dot keeps a line break at the end of the path.
path=$(printf %b. "$2");
# shellcheck disable=SC2034
path=$home${path%.};
shift 2;
set -- "${@:1:$#-1}";
