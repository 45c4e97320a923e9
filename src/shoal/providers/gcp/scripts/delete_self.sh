# shellcheck shell=sh
# Deletes this instance with the token of its service account. An instance without one, or whose
# account may not, powers off: its cores and GPUs stop costing, and the cluster's controller, `shoal
# down` or `shoal gc` delete the rest.
metadata=http://169.254.169.254/computeMetadata/v1

read_metadata() {
  curl -sf --max-time 10 -H 'Metadata-Flavor: Google' "$metadata/$1"
}

delete_self() {
  project=$(read_metadata project/project-id) &&
    zone=$(read_metadata instance/zone) &&
    name=$(read_metadata instance/name) &&
    token=$(read_metadata instance/service-accounts/default/token) || return 1
  token=${token#*'"access_token"'} token=${token#*'"'} token=${token%%'"'*}
  url="https://compute.googleapis.com/compute/v1/projects/$project/zones/${zone##*/}/instances/$name"
  # The token is passed on standard input: other users can read the arguments of a process.
  printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl -sf --max-time 30 -o /dev/null -K - -X DELETE "$url"
}

delete_self && sleep 120
until sudo -n shutdown -h now || shutdown -h now; do
  sleep 30
  delete_self
done
