#!/bin/bash
# Runs as root on the temporary machine that fills the shared disk (metadata key startup-script): formats the disk if it
# is empty, copies the source from its bucket, verifies every file with the bucket's checksums, runs the user's
# preparation script, writes a manifest, and reports the result in the bucket. If it is killed and started again, also on
# another machine, the result is the same. docs/google-cloud-hosts.md describes it.
#
# The preparation script gets two arguments: the folder with the copied source, and the root of the disk. With such a
# script the source is in DISK/source, where it may be deleted; without one it is in DISK itself. A script that was killed
# is run again from its beginning, on the files that it has left.
set -Eeuo pipefail

root=${MASKWRIGHT_ROOT:-}   # tests replace / by a folder
patience=${MASKWRIGHT_PATIENCE_SECONDS:-300}
pause=${MASKWRIGHT_PAUSE_SECONDS:-5}
run=$root/run/maskwright
storage=${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}
label=maskwright-data
disk=$root/mnt/maskwright-seed
notes=$disk/.maskwright   # finished work; survives with the disk
ours='(lost\+found|\.maskwright)(/|$)|MANIFEST\.sha256$'   # ours, never files of the source
step=start environment='' result='' source='' prepare='' name='' device='' target='' begun=$SECONDS
export CLOUDSDK_CONFIG=${CLOUDSDK_CONFIG:-$run/gcloud} CLOUDSDK_CORE_DISABLE_PROMPTS=1 CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=1

hide() {
  sed -u -E \
    -e 's#(://)[^/@[:space:]]+@#\1***@#g' \
    -e 's#(authorization["'\'']?[[:space:]]*[:=][[:space:]]*["'\'']?([a-z]+[[:space:]]+)?|bearer[[:space:]]+)[A-Za-z0-9._~+/=-]{8,}#\1***#gI' \
    -e 's#ya29\.[A-Za-z0-9._-]+#***#g' \
    -e 's#((token|secret|passw(or)?d|passphrase|credential|[_-]key)s?["'\'']?[[:space:]]*[:=][[:space:]]*["'\'']?)[^[:space:]"'\''&]{7,}[^[:space:]"'\''&.,;:)]#\1***#gI'
}
exec > >(hide) 2>&1
say() { echo "maskwright: $*"; }
begin() { step=$1; say "$1${2:+: $2}"; }

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
attribute() {  # VARIABLE NAME [must]: empty if it is not set
  local code=0 text
  text=$(meta "attributes/$2") || code=$?
  [ "$code" -eq 0 ] || { [ "$code" -eq 4 ] && [ -z "${3:-}" ]; } || fail "metadata attribute $2 is missing" 'maskwright env seed'
  printf -v "$1" '%s' "$text"
}
google() {  # curl with the service account's token; prints the answer, and the status on the last line
  local secret
  secret=$(meta service-accounts/default/token | sed -E 's/.*"access_token" *: *"([^"]+)".*/\1/')
  printf 'header = "Authorization: Bearer %s"\n' "$secret" |
    curl -sS -K - --max-time 60 --retry 6 --retry-delay 2 --retry-connrefused -w '\n%{http_code}' "$@"
}
url() {  # gs://BUCKET/OBJECT: path of the object in the API
  local path=${1#gs://} object
  object=${path#*/}
  printf 'b/%s/o%s%s' "${path%%/*}" "$2" "${object//\//%2F}"
}
get() {
  local answer
  answer=$(google "$storage/storage/v1/$(url "$1" /)?alt=media")
  case ${answer##*$'\n'} in 200) printf '%s\n' "${answer%$'\n'*}" ;; 404) return 4 ;; *) return 1 ;; esac
}
put_result() {
  local answer
  answer=$(google -X POST -H 'Content-Type: application/json' --data-raw "$1" \
    "$storage/upload/storage/v1/$(url "$result" '?uploadType=media&name=')")
  [ "${answer##*$'\n'}" = 200 ] || say "$result cannot be written (HTTP ${answer##*$'\n'})"
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
  if mountpoint -q "$disk"; then umount "$disk" || say "$disk cannot be unmounted"; fi
  if [ -n "$result" ]; then
    put_result "{\"ok\": false, \"step\": \"$step\", \"what\": $(quote "$1. Fix: $2")}"
    shutdown -h now   # the result is reported, so the machine need not cost more
  fi
  exit 1
}
finish() {
  local code=$?
  [ "$code" -eq 0 ] || [ -n "$reported" ] || fail "ended with $code at line ${line:-?}" 'see the lines before this one in the log'
}
trap 'line=$LINENO' ERR
trap finish EXIT
trap 'reported=yes; exit 143' HUP INT TERM
again() {  # COMMAND…: retry until it works, or patience is over
  local until=$((SECONDS + patience))
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep "$pause"
  done
}
last_error() {  # FILE: the last error message of gcloud or a script
  { grep -E 'ERROR' "$1" || tail -n 5 "$1" | grep -v '^ *$' || echo 'no message'; } | tail -n 1
}

# ---- checksums and the manifest --------------------------------------------------------------------------------------

files() { python3 -I - "$@" <<'PYTHON'
"""listing FILE PREFIX: print a sorted line for each file of gcloud's listing.
check LISTING FOLDER HASHES: delete files that differ, and print their names.
manifest DISK HASHES: print the lines of `sha256sum` for all files of the disk."""
import base64, hashlib, json, os, re, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

OURS = re.compile(r"(lost\+found|\.maskwright)(/|$)|MANIFEST\.sha256$")


def below(folder):
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(where, name)
            relative = os.path.relpath(path, folder)
            if os.path.isfile(path) and not os.path.islink(path) and not OURS.match(relative):
                yield relative, path


def hashes(path):
    """hashlib releases Python's lock, so threads are enough."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 22):
            md5.update(block)
            sha256.update(block)
    return base64.b64encode(md5.digest()).decode(), sha256.hexdigest()


def state(path):
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def crc32c(path):
    """Composite objects have no MD5."""
    words = ["gcloud", "storage", "hash", "--skip-md5", "--format=value(crc32c_hash)", path]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def listing(file, prefix):
    with open(file) as stream:
        objects = json.load(stream)
    rows = []
    for item in objects:
        name = item["name"][len(prefix) :].lstrip("/") if item["name"].startswith(prefix) else ""
        if not name or name.endswith("/") or OURS.match(name):  # the console marks a folder by a name that ends in /
            continue
        md5, crc = item.get("md5_hash") or "", item.get("crc32c_hash") or ""
        rows.append([name, int(item["size"]), md5, crc, item["generation"]])
    for row in sorted(rows):
        print(json.dumps(row))


def check(file, folder, cache):
    with open(file) as stream:
        rows = [json.loads(line) for line in stream]
    good, bad = {}, []

    def verify(row):
        name, size, md5, crc, _ = row
        path = os.path.join(folder, name)
        if not os.path.isfile(path) or os.path.getsize(path) != size:
            return name, None, False
        before = state(path)
        actual, sha256 = hashes(path)
        same = actual == md5 if md5 else crc32c(path) == crc
        return name, [*before, sha256], same

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for name, facts, same in threads.map(verify, rows):
            if same:
                good[name] = facts
            else:
                bad.append(name)
    expected = {row[0] for row in rows}
    bad += [name for name, _ in below(folder) if name not in expected]
    with open(cache, "w") as stream:
        json.dump({"folder": folder, "files": good}, stream)
    for name in bad:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            os.unlink(path)
        print(name)


def manifest(disk, cache):
    with open(cache) as stream:
        checked = json.load(stream)
    known = {os.path.join(checked["folder"], name): facts for name, facts in checked["files"].items()}

    def line(names):
        relative, path = names
        facts = known.get(path)
        sha256 = facts[2] if facts and facts[:2] == state(path) else hashes(path)[1]
        escaped = relative.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        return ("\\" if escaped != relative else "") + f"{sha256}  {escaped}", os.path.getsize(path)

    total = 0
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        lines = list(threads.map(line, below(disk)))
    for text, size in lines:
        total += size
        print(text)
    print(f"{len(lines)} {total}", file=sys.stderr)


{"listing": listing, "check": check, "manifest": manifest}[sys.argv[1]](*sys.argv[2:])
PYTHON
}
keep() {  # FILE: write standard input to it, atomically
  cat >"$1.new"
  sync "$1.new"
  mv -f "$1.new" "$1"
  sync "$(dirname "$1")"
}

# ---- the steps -------------------------------------------------------------------------------------------------------

format_disk() {
  begin format "$device"
  again test -e "$device" || fail 'the disk is not attached' 'maskwright env seed'
  local existing code=0
  existing=$(blkid -p -o value -s LABEL "$device") || code=$?
  if [ "$code" -eq 2 ] && [ -z "$(wipefs -n "$device")" ]; then
    # A data disk needs no reserved blocks. Tables are written when they are used, which saves minutes now.
    mkfs.ext4 -q -m 0 -E lazy_itable_init=1,lazy_journal_init=1,nodiscard -L "$label" "$device" ||
      fail 'the disk cannot be formatted' 'see mkfs.ext4 in the log'
  elif [ "$existing" != "$label" ]; then
    fail 'the disk has foreign data, which is not overwritten' 'seed a new disk: change disk.size_gb, or empty this one by hand'
  fi
}
mount_disk() {
  begin mount
  mkdir -p "$disk"
  mountpoint -q "$disk" || mount -o rw,noatime "$device" "$disk" || fail 'the disk cannot be mounted' 'see mount in the log'
  mkdir -p "$notes"
}
list_source() {
  begin list "$source"
  local path=${source#gs://} prefix
  prefix=${path#*/}
  [ "$prefix" != "$path" ] || prefix=
  if ! gcloud storage objects list "$source/**" --format='json(name,size,md5_hash,crc32c_hash,generation)' >"$run/found.json" 2>"$run/log"; then
    fail "$(last_error "$run/log")" "check disk.source, and that $environment-train may read it (roles/storage.objectViewer)"
  fi
  files listing "$run/found.json" "$prefix" >"$run/listing"
  [ -s "$run/listing" ] || fail "$source has no files" 'check disk.source'
  wanted=$(sha256sum <"$run/listing" | cut -c 1-64)
}
copy() {
  begin copy "$(wc -l <"$run/listing") files to $target"
  mkdir -p "$target"
  # Left by a copy that was killed: gcloud 528 resumes them and deletes them as unmatched, in either order.
  find "$target" -type f -name '*_.gstmp' -exec rm -f {} +
  local tries=1
  until gcloud storage rsync --recursive --delete-unmatched-destination-objects --exclude="$ours" --no-user-output-enabled \
    "$source" "$target" 2>"$run/log"; do
    [ "$tries" -lt 3 ] ||
      fail "$(last_error "$run/log")" "check that the disk is large enough (disk.size_gb), and that $environment-train may read the source"
    tries=$((tries + 1))
    say "$(last_error "$run/log"): trying again"
    sleep "$pause"
  done
}
copy_and_check() {
  local bad
  copy
  begin verify
  files check "$run/listing" "$target" "$run/hashes.json" >"$run/bad"
  if [ -s "$run/bad" ]; then
    # After a power failure a file may have its size and no content. Files that differ were deleted, and are copied again.
    say "$(wc -l <"$run/bad") files differ from the bucket's, such as $(head -n 1 "$run/bad"): copied again"
    copy
    begin verify
    files check "$run/listing" "$target" "$run/hashes.json" >"$run/bad"
  fi
  bad=$(wc -l <"$run/bad")
  [ "$bad" -eq 0 ] || fail "$bad files differ from the bucket's, such as $(head -n 1 "$run/bad")" \
    "make sure that nothing writes to $source meanwhile, then maskwright env seed"
}
run_prepare() {
  begin prepare "$prepare"
  local code=0
  bash "$run/prepare.sh" "$target" "$disk" </dev/null 2>&1 | tee "$run/log" || code=$?
  [ "$code" -eq 0 ] || fail "the preparation script ended with $code: $(last_error "$run/log")" 'correct disk.prepare, then maskwright env seed'
}
write_manifest() {
  begin manifest
  [ -e "$run/hashes.json" ] || echo '{"folder": "/", "files": {}}' >"$run/hashes.json"
  files manifest "$disk" "$run/hashes.json" 2>"$run/counts" >"$run/manifest"
  keep "$disk/MANIFEST.sha256" <"$run/manifest"
  local files bytes
  read -r files bytes <"$run/counts"
  numbers="\"files\": $files, \"bytes\": $bytes, \"manifest_sha256\": \"$(sha256sum <"$run/manifest" | cut -c 1-64)\""
  printf '{"for": "%s", "source": %s, %s}\n' "$wanted" "$(quote "$source")" "$numbers" | keep "$notes/seed.json"
}

main() {
  mkdir -p "$run"
  attribute result maskwright-seed-result must
  attribute environment maskwright-environment must
  attribute source maskwright-seed-source must
  attribute prepare maskwright-seed-prepare
  attribute name maskwright-disk must
  source=${source%/\*}
  source=${source%/}
  device=$root/dev/disk/by-id/google-$name
  if get "$result" | grep -q '"ok": true'; then
    say 'was already done'
    shutdown -h now
    return 0
  fi
  format_disk
  mount_disk
  list_source
  target=$disk
  if [ -n "$prepare" ]; then
    target=$disk/source
    get "$prepare" >"$run/prepare.sh" || { step=prepare; fail "$prepare cannot be read" 'maskwright env seed, which uploads it'; }
    case ${prepare##*/} in  # as in startup.sh, its name is its sha256
      *[!0-9a-f]*.sh) ;;
      ????????????????????????????????????????????????????????????????.sh)
        [ "$(head -c -1 "$run/prepare.sh" | sha256sum | cut -c 1-64).sh" = "${prepare##*/}" ] ||
          { step=prepare; fail "$prepare is not what was uploaded (its sha256 differs)" 'find out who writes to the runs bucket, then maskwright env seed'; } ;;
    esac
    wanted=$(cat "$run/listing" "$run/prepare.sh" | sha256sum | cut -c 1-64)
  fi
  if [ "$(cat "$notes/done" 2>/dev/null)" != "$wanted" ]; then
    rm -f "$notes/done" "$notes/seed.json" "$disk/MANIFEST.sha256"
    copy_and_check
    [ -z "$prepare" ] || run_prepare
    sync
    echo "$wanted" | keep "$notes/done"
  fi
  write_manifest
  begin unmount
  sync
  umount "$disk" || fail 'the disk cannot be unmounted' 'see the log for what keeps it busy'
  step='done'
  say "done: $numbers"
  put_result "{\"ok\": true, $numbers, \"seconds\": $((SECONDS - begun))}"
  shutdown -h now
}
main
