# shellcheck shell=sh
# Prints the manifest of an image as its registry has it. Drops the field in which some versions of
# docker repeat the whole manifest on one long line.
#
#   inspect_manifest.sh RUNTIME IMAGE
runtime=$1 image=$2
if [ "$runtime" = docker ]; then set -- --verbose; else set --; fi
"$runtime" manifest inspect "$@" "$image" | sed '/"Raw":/d'
