# shellcheck shell=sh
# Prints facts about the container runtime and its host, one `KEY VALUE` per line. Exits with 127
# if the runtime is not installed, with 1 if this user cannot use it.
#
#   probe_runtime.sh RUNTIME IMAGE REPOSITORY CONTAINER CLUSTER_LABEL
runtime=$1 image=$2 repository=$3 container=$4 label=$5
command -v "$runtime" > /dev/null || exit 127
"$runtime" ps -q > /dev/null || exit 1

fact() { printf '%s %s\n' "$1" "$2"; }

if [ "$runtime" = podman ]; then
  storage=$(podman info -f '{{.Store.GraphRoot}}' 2>/dev/null)
else
  storage=$(docker info -f '{{.DockerRootDir}}' 2>/dev/null)
  case $(docker info -f '{{.Runtimes}}' 2>/dev/null) in
  *nvidia*) if nvidia-smi > /dev/null 2>&1; then fact gpu yes; fi ;;
  esac
fi
fact free_kib "$(df -Pk "$storage" 2>/dev/null | awk 'NR == 2 { print $4 }')"
fact memory_kib "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)"
fact architecture "$(uname -m)"
fact image "$("$runtime" image inspect -f '{{.Id}}' "$image" 2>/dev/null)"
fact same_repository "$("$runtime" images -q "$repository" 2>/dev/null | head -n 1)"
format="{{index .Config.Labels \"$label\"}}"
if cluster=$("$runtime" container inspect -f "$format" "$container" 2>/dev/null); then
  fact container "of $cluster"
fi
