# shellcheck shell=bash
# Runs the program in the file $1, which it deletes before, on a terminal. The program appends a line
# to the file once it has read the dotfiles; without that line they have ended or replaced its shell,
# and the exit code is $2. Sent on one line.
exec 7<"$1" || exit 1;
exec 8>>"$1" || exit 1;
rm -f "$1";
# shellcheck disable=SC2164
cd 2>/dev/null;
bash --noprofile --norc --login -i -c "eval \"\$(cat <&7)\"" 4>&2 2>/dev/null;
code=$?;
read -r <&7 || exit "$2";
exit $code
