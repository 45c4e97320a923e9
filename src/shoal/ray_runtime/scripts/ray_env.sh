# shellcheck shell=sh
# Manages the virtual environments in which a cluster keeps its own Ray, one per installation.
#
#   ray_env.sh ACTION DIRECTORY [NAME [VALUE]]
#
#   python   print the Python version and platform of this host
#   version  print the version of the Ray in use, if any
#   create   create environment NAME, install requirement VALUE into it, print the version of Ray
#   adopt    fix the paths in environment NAME, a copy from another host; print the version of Ray
#   switch   use environment NAME; delete all others except the previous one and those in which a
#            Ray still runs. VALUE is the text of setup-env.sh
#   delete   delete environment NAME
#   use-code let workers import version NAME of the user's modules; delete all other versions
#
# DIRECTORY may start with `~/`. A requirement that is a file is relative to it.
set -e
action=$1 name=$3 value=$4
# shellcheck disable=SC2088 # a literal tilde
case $2 in
"~") directory=$HOME ;;
"~/"*) directory=$HOME/${2#"~/"} ;;
/*) directory=$2 ;;
*) directory=$PWD/$2 ;;
esac
env=$directory/ray-envs/$name

print_ray_version() {
  for info in "$1"/lib/python*/site-packages/ray-*.dist-info; do
    [ -d "$info" ] || continue
    info=${info##*/ray-}
    echo "ray version: ${info%.dist-info}"
  done
}

# Importing Ray shows what a host lacks that got its environment from another one.
check_ray() {
  print_ray_version "$env"
  "$env/bin/python" -c 'import ray'
}

is_in_use() {
  readlink /proc/[0-9]*/exe 2>/dev/null | grep -qF "$(cd "$1" && pwd -P)/"
}

case $action in
python)
  command -v python3 > /dev/null || {
    echo "python3 is not installed" >&2
    exit 1
  }
  exec python3 -c 'import platform as p, sys
print("python version: %d.%d for %s %s" % (*sys.version_info[:2], p.system(), p.machine()))'
  ;;
version)
  print_ray_version "$directory/ray"
  ;;
create)
  mkdir -p "$directory/ray-envs"
  # Debian has the venv module in a separate package.
  if ! python3 -m venv "$env"; then
    sudo -n apt-get update -q && sudo -n apt-get install -q -y python3-venv
    python3 -m venv --clear "$env"
  fi
  cd "$directory"
  "$env/bin/python" -m pip --disable-pip-version-check --no-input \
    install --progress-bar off "$value"
  rm -rf ray-wheel
  printf %s "$env" > "$env/original-path"
  check_ray
  ;;
adopt)
  # The interpreter, and perhaps the directory, has another path here than where it was created.
  rm -f "$env"/bin/python*
  python3 -m venv --without-pip "$env"
  "$env/bin/python" -c 'import pathlib, sys
new = sys.argv[1].encode()
old = pathlib.Path(sys.argv[1], "original-path").read_bytes()
for file in pathlib.Path(sys.argv[1], "bin").iterdir():
    if new != old and not file.is_symlink() and file.read_bytes().startswith(b"#!"):
        file.write_bytes(file.read_bytes().replace(old, new))' "$env"
  check_ray
  ;;
switch)
  previous=$(readlink "$directory/ray" || true)
  quoted=$(printf %s "$directory" | sed "s/'/'\\\\''/g")
  printf '%s\n' "RAY_HOME='$quoted'" "$value" > "$directory/setup-env.sh.new"
  ln -sfn "ray-envs/$name" "$directory/ray.new"
  "$env/bin/python" -c 'import os, sys; os.replace(*sys.argv[1:])' \
    "$directory/ray.new" "$directory/ray"
  mv "$directory/setup-env.sh.new" "$directory/setup-env.sh"
  for other in "$directory/ray-envs"/*; do
    case ray-envs/${other##*/} in "ray-envs/$name" | "$previous") continue ;; esac
    is_in_use "$other" || rm -rf "$other"
  done
  ;;
delete)
  rm -rf "$env"
  ;;
use-code)
  cd "$directory/worker_code"
  ln -sfn "code-$name" current
  for other in code-*; do
    [ "$other" = "code-$name" ] || rm -rf "$other"
  done
  ;;
esac
