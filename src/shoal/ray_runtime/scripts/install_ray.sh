# Installs Ray into ~/.shoal/ray, unless this host has a Ray already.
#
#   install_ray.sh VERSION REQUIREMENT
#
# VERSION is empty if any version will do. A Ray that Shoal did not install is left alone. Needs no
# root where Python can make virtual environments.
# shellcheck shell=sh
version=${1:-*} requirement=$2
directory=$HOME/.shoal/ray
case "$(command -v ray)" in "" | "$directory"/*) ;; *) exit 0 ;; esac
# shellcheck disable=SC2231 # the version may be a pattern
for info in "$directory"/lib/python3.*/site-packages/ray-$version.dist-info; do
  [ ! -d "$info" ] || exit 0
done

# Ray and Shoal need Python 3.10; Amazon Linux has 3.9 as python3, and newer ones as packages.
find_python() {
  for python in python3 python3.13 python3.12 python3.11 python3.10; do
    if "$python" -c "import sys; sys.exit(sys.version_info < (3, 10))" 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  return 1
}
if ! python=$(find_python); then
  python=python3
  if command -v dnf >/dev/null && $(command -v sudo) dnf -q -y install python3.11; then
    python=python3.11
  fi
fi

apt_get() {
  $(command -v sudo) env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y -o DPkg::Lock::Timeout=300 "$@"
}
# A host that has just booted may still be installing packages, so this is retried.
"$python" -c "import ensurepip" 2>/dev/null || ! command -v apt-get >/dev/null || for _ in 1 2 3 4 5 6; do
  apt_get update && apt_get install python3-venv && break
  sleep 5
done

"$python" -m venv "$directory" && "$directory/bin/pip" install -q -U "$requirement" || exit
line="export PATH=\"\$HOME/.shoal/ray/bin:\$PATH\""
grep -qsxF "$line" ~/.bashrc || echo "$line" >> ~/.bashrc
