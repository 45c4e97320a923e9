# shellcheck shell=sh
# Prints the last line of the user's dotfiles that runs, and the last error in them, if any.
#
#   trace_profile.sh LOAD_PROFILE
file=$(mktemp) || exit
# shellcheck disable=SC2016 # expanded by the inner shell
timeout 10 bash --noprofile --norc --login -i -c 'exec 9>"$1" 2>&9
BASH_XTRACEFD=9 PS4="+\$BASH_SOURCE:\$LINENO: "
set -x
eval "$2"' bash "$file" "$1" < /dev/null > /dev/null 2>&1
# A login shell that exits also reads .bash_logout.
last=$(sed -n '/bash_logout:/d; s/^++*//p' "$file" | tail -n 1)
error=$(grep -v '^+' "$file" | tail -n 1)
echo "$last${error:+ ($error)}"
rm -f "$file"
