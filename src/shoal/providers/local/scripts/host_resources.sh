# shellcheck shell=sh
# Prints what this host has and Ray would detect, as `resource NAME AMOUNT` lines: CPUs, NVIDIA and
# AMD GPUs, and, in KiB, the available memory and shared memory. Like Ray, it heeds the limits of a
# cgroup, which a host that is itself a container has.
cpus=$(getconf _NPROCESSORS_ONLN 2>/dev/null)
quota=max period=1
if [ -r /sys/fs/cgroup/cpu.max ]; then
  read -r quota period < /sys/fs/cgroup/cpu.max
elif [ -r /sys/fs/cgroup/cpu/cpu.cfs_quota_us ]; then
  read -r quota < /sys/fs/cgroup/cpu/cpu.cfs_quota_us
  read -r period < /sys/fs/cgroup/cpu/cpu.cfs_period_us
fi
case $quota in max | -*) ;; *) cpus=$((quota < period ? 1 : quota / period)) ;; esac
[ -z "$cpus" ] || echo "resource cpus $cpus"

gpus=0
for gpu in /proc/driver/nvidia/gpus/*; do [ ! -d "$gpu" ] || gpus=$((gpus + 1)); done
for node in /sys/class/kfd/kfd/topology/nodes/*/properties; do
  if grep -qsx 'vendor_id 4098' "$node"; then gpus=$((gpus + 1)); fi
done
echo "resource gpus $gpus"

memory=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)
for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
  limit=$(cat "$file" 2>/dev/null)
  case $limit in
  '' | *[!0-9]* | ????????????????*) ;; # without a limit: `max`, or a number of 19 digits
  *) [ $((limit / 1024)) -ge "${memory:-0}" ] || memory=$((limit / 1024)) ;;
  esac
done
[ -z "$memory" ] || echo "resource memory $memory"
df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print "resource shared_memory " $4 }'
