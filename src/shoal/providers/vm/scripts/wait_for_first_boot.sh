#!/bin/sh
# Waits until cloud-init is done, which installs packages and runs the user data after sshd has
# started, and has apt wait for a lock instead of failing. Arguments: seconds for cloud-init,
# seconds for apt. Runs as root. Never fails: the user's commands may not need any of this.
cloud_init_seconds=$1 apt_seconds=$2
if command -v cloud-init >/dev/null; then
  timeout "$cloud_init_seconds" cloud-init status --wait >/dev/null 2>&1
  if [ $? = 124 ]; then
    echo "cloud-init is still running after $cloud_init_seconds s; continuing without it" >&2
  fi
fi
if [ -d /etc/apt/apt.conf.d ]; then
  echo "DPkg::Lock::Timeout \"$apt_seconds\";" >/etc/apt/apt.conf.d/90shoal-lock-timeout
  # apt does not wait for the lock of its package lists, which the daily update holds.
  while command -v fuser >/dev/null && fuser -s /var/lib/apt/lists/lock; do
    [ "$apt_seconds" -gt 0 ] || break
    apt_seconds=$((apt_seconds - 1))
    sleep 1
  done
fi
exit 0
