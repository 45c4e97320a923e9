# shellcheck shell=bash disable=SC2154
# Receives the content of a directory; rsync_path.sh comes first. An existing directory keeps its
# mode: it may be /tmp, or the home directory whose mode sshd checks. Sent on one line.
if [ -d "$path" ]; then
  mode=$(stat -c %a -- "$path" 2>/dev/null || stat -f %Lp -- "$path");
  rsync "$@" "$path/";
  code=$?;
  chmod "$mode" "$path" 2>/dev/null;
  exit $code;
fi;
mkdir -p -- "$path" && exec rsync "$@" "$path/"
