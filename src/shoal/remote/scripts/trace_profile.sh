# shellcheck shell=sh
# Prints the last line of the user's dotfiles that runs, or the last error in them.
#
#   trace_profile.sh LOAD_PROFILE
file=$(mktemp) || exit
# shellcheck disable=SC2016 # expanded by the inner shell
timeout 10 bash --noprofile --norc --login -i -c 'exec 9>"$0" 2>&9
BASH_XTRACEFD=9 PS4="+\$BASH_SOURCE:\$LINENO: "
set -x
eval "$1"' "$file" "$1" < /dev/null > /dev/null
# A login shell that exits also reads .bash_logout.
sed '/^+.*bash_logout:/d; s/^+*//' "$file" | tail -n 1
rm -f "$file"
