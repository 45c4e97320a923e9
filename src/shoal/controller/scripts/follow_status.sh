#!/bin/sh
# Usage: follow_status DIRECTORY SECONDS LOG_LINES
# Every SECONDS, prints what print_status.sh prints, the controller's status if it has changed, the
# new lines of the files that only grow, each after the file's name, and `end`. Ends when its
# output is closed, or when the directory is removed. Needs print_status.sh.
directory=$1 seconds=$2 log_lines=$3
cd "$directory" 2> /dev/null || exit 0

# print_new FILE SEEN: print what FILE has beyond its first SEEN bytes, and set `seen`. A file that
# has become shorter was renamed to FILE.1, and another one begun.
print_new() {
  seen=$2
  size=$(wc -c 2> /dev/null < "$1" || echo 0)
  if [ "$size" -lt "$seen" ]; then
    [ ! -e "$1.1" ] || tail -c "+$((seen + 1))" "$1.1" | sed "s/^/$1 /"
    seen=0
  fi
  [ "$size" -gt "$seen" ] || return 0
  tail -c "+$((seen + 1))" "$1" | head -c "$((size - seen))" | sed "s/^/$1 /"
  seen=$size
}

for name in history.jsonl samples.jsonl; do
  [ ! -e "$name.1" ] || sed "s/^/$name /" "$name.1"
done
history=0 samples=0 usage=0 inode=
while [ -e "$(pwd -P 2> /dev/null)" ]; do
  print_status "$log_lines"
  # The file is replaced as a whole, so a new one has another inode.
  now_inode=$(ls -i state.json 2> /dev/null)
  if [ "$now_inode" != "$inode" ]; then
    inode=$now_inode
    [ ! -e state.json ] || { printf 'state ' && cat state.json && echo; }
  fi
  print_new history.jsonl "$history"; history=$seen
  print_new samples.jsonl "$samples"; samples=$seen
  print_new usage.jsonl "$usage"; usage=$seen
  echo end || exit 0
  sleep "$seconds"
done
