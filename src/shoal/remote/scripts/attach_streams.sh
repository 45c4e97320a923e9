# shellcheck shell=bash
# Runs the program in the file $1 without a terminal, where closing the connection ends nothing:
# while the program runs, the file holds its process group, for end_attached.sh. The program gets a
# process group of its own, since not everything that starts a command makes one. For $2, see
# attach_terminal.sh. Sent on one line.
exec 7<"$1" || exit 1;
exec 8>>"$1" || exit 1;
rm -f "$1";
# shellcheck disable=SC2164
cd 2>/dev/null;
set -m;
bash --noprofile --norc --login -i -c "eval \"\$(cat <&7)\"" 4>&2 2>/dev/null <&0 &
(set -C; umask 077; echo $! >"$1");
wait $! 2>/dev/null;
code=$?;
rm -f "$1";
read -r <&7 || exit "$2";
exit $code
