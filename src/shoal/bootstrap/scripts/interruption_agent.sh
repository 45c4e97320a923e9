# shellcheck shell=sh
# Posts every line that WATCH prints, each an interruption notice, to the controller.
#
#   interruption_agent.sh HEAD CONTROLLER_PORT NODE_ID WATCH TOKEN_FILE
#
# A notice that the controller does not accept, because it is not running yet or is being replaced,
# is posted again every second. The token is read here, so that it is on no command line. Needs
# controller_request.sh.
head=$1 controller_port=$2 node_id=$3 watch=$4 token_file=$5

exit_if_running interruption.lock

post_notice() {
  printf 'POST /interruptions/%s HTTP/1.0\r\nAuthorization: Bearer %s\r\nContent-Length: %s\r\n\r\n%s' \
    "$node_id" "$(cat "$token_file")" "${#1}" "$1" |
    controller_request "$head" "$controller_port" > /dev/null
}

sh -c "$watch" | while read -r notice; do
  until post_notice "$notice"; do sleep 1; done
done
