# shellcheck shell=sh
# Runs on the head: prints Ray's nodes as the controller reports them. Fails if it does not answer.
# Needs controller_request.sh.
#
#   request_nodes.sh HEAD CONTROLLER_PORT TOKEN_FILE
#
# The token is read here, so that it is on no command line.
head=$1 controller_port=$2 token_file=$3
[ -r "$token_file" ] || exit 1
printf 'GET /nodes HTTP/1.0\r\nAuthorization: Bearer %s\r\n\r\n' "$(cat "$token_file")" |
  controller_request "$head" "$controller_port"
