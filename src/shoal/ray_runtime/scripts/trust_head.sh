# shellcheck shell=sh
# Lets the head log in to this host. Needs authorize_key.sh.
#
#   trust_head.sh PUBLIC_KEY
set -e
umask 077
authorize_key "$1"
