#!/bin/bash
# What the scripts of hosts and of the seeding machine share. Terraform puts it before them in the metadata, so on a machine
# it is the beginning of the one script that runs there. `report_failure` is theirs.
set -Eeuo pipefail

root=${MASKWRIGHT_ROOT:-}   # tests replace / by a folder
patience=${MASKWRIGHT_PATIENCE_SECONDS:-300}   # time to wait for devices, the network, a service, the registry
pause=${MASKWRIGHT_PAUSE_SECONDS:-5}
run=$root/run/maskwright   # a file system in memory; does not survive a reboot
storage=${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}
step=start environment=''

# The guest agent passes the output to the serial port and to Cloud Logging.
hide() {
  sed -u -E \
    -e 's#(://)[^/@[:space:]]+@#\1***@#g' \
    -e 's#(authorization["'\'']?[[:space:]]*[:=][[:space:]]*["'\'']?([a-z]+[[:space:]]+)?|bearer[[:space:]]+)[A-Za-z0-9._~+/=-]{8,}#\1***#gI' \
    -e 's#ya29\.[A-Za-z0-9._-]+#***#g' \
    -e 's#((token|secret|passw(or)?d|passphrase|credential|[_-]key)s?["'\'']?[[:space:]]*[:=][[:space:]]*["'\'']?)[^[:space:]"'\''&]{7,}[^[:space:]"'\''&.,;:)]#\1***#gI'
}
exec > >(hide) 2>&1
say() { echo "maskwright: $*"; }

# ---- the metadata server and the bucket; a token goes only through pipes, never into an argument or a file -----------

meta() {  # PATH: its value; exit code 4 if it does not exist
  local answer
  answer=$(curl -sS --max-time 20 --retry 10 --retry-delay 2 --retry-connrefused --retry-all-errors \
    -H 'Metadata-Flavor: Google' -w '\n%{http_code}' \
    "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/$1")
  case ${answer##*$'\n'} in
    200) printf '%s' "${answer%$'\n'*}" ;;
    404) return 4 ;;
    *) return 1 ;;
  esac
}
attribute() {  # VARIABLE NAME [COMMAND]: empty if it is not set; with COMMAND, which sets it, that is a failure
  local code=0 text
  text=$(meta "attributes/$2") || code=$?
  [ "$code" -eq 0 ] || { [ "$code" -eq 4 ] && [ -z "${3:-}" ]; } || fail "metadata attribute $2 is missing" "${3:-run it on a Google host}"
  printf -v "$1" '%s' "$text"
}
token() { meta service-accounts/default/token | sed -E 's/.*"access_token" *: *"([^"]+)".*/\1/'; }
google() {  # curl with the service account's token; prints the answer, and the status on the last line
  local secret
  secret=$(token)
  printf 'header = "Authorization: Bearer %s"\n' "$secret" |
    curl -sS -K - --max-time 60 --retry 6 --retry-delay 2 --retry-connrefused -w '\n%{http_code}' "$@"
}
url() {  # gs://BUCKET/OBJECT BEFORE: path in the API, with BEFORE before the object's name
  local path=${1#gs://} object
  object=${path#*/}
  printf 'b/%s/o%s%s' "${path%%/*}" "$2" "${object//\//%2F}"
}
get() {  # gs://BUCKET/OBJECT: its content; exit code 4 if it does not exist
  local answer
  answer=$(google "$storage/storage/v1/$(url "$1" /)?alt=media")
  case ${answer##*$'\n'} in
    200) printf '%s\n' "${answer%$'\n'*}" ;;
    404) return 4 ;;
    *) echo "$1: cannot be read (HTTP ${answer##*$'\n'})" >&2; return 1 ;;
  esac
}
put() {  # gs://BUCKET/OBJECT TEXT [&ifGenerationMatch=0]: exit code 5 if it exists already
  local answer
  answer=$(google -X POST -H 'Content-Type: application/json' --data-raw "$2" \
    "$storage/upload/storage/v1/$(url "$1" '?uploadType=media&name=')${3:-}")
  case ${answer##*$'\n'} in
    200) ;;
    412) return 5 ;;
    *) echo "$1: cannot be written (HTTP ${answer##*$'\n'})" >&2; return 1 ;;
  esac
}
get_script() {  # gs://BUCKET/OBJECT FILE COMMAND: a script of the user's, which COMMAND uploads
  get "$1" >"$2" || fail "$1 cannot be read" "$3, which uploads it"
  # The name, which comes from the metadata, is its sha256: write access to the bucket does not give root on machines.
  case ${1##*/} in
    *[!0-9a-f]*.sh) ;;
    ????????????????????????????????????????????????????????????????.sh)
      [ "$(head -c -1 "$2" | sha256sum | cut -c 1-64).sh" = "${1##*/}" ] ||
        fail "$1 is not what was uploaded (its sha256 differs)" "find out who writes to the jobs bucket, then $3" ;;
  esac
}
quote() {  # as JSON
  local text
  text=$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | hide)
  text=${text//\\/\\\\}
  printf '"%s"' "${text//\"/\\\"}"
}

# ---- failure ---------------------------------------------------------------------------------------------------------

reported='' line=''
fail() {  # WHAT FIX
  reported=yes
  say "$step: $1. Fix: $2"
  report_failure "$1" "$2"
  exit 1
}
finish() {
  local code=$?
  rm -rf "$run/docker"   # a token, if the pull was interrupted
  [ "$code" -eq 0 ] || [ -n "$reported" ] || fail "ended with $code at line ${line:-?}" 'see the lines before this one in the log'
}
trap 'line=$LINENO' ERR
trap finish EXIT
trap 'reported=yes; exit 143' HUP INT TERM
again() {  # COMMAND…: retry until it works, or patience is over
  local until=$((SECONDS + patience))
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep "$pause" 9>&-   # the lock of a host's start-up, where there is one
  done
}
