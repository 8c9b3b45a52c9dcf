# Runs as root on the temporary machine that fills the shared disk (metadata key startup-script, after common.sh): formats
# the disk if it is empty, copies the source from its bucket, verifies every file with the bucket's checksums, runs the
# user's preparation script, writes a manifest, and reports the result in the bucket. If it is killed and started again,
# also on another machine, the result is the same. docs/google-cloud-hosts.md describes it.
#
# The preparation script gets two arguments: the folder with the copied source, and the root of the disk. With such a
# script the source is in DISK/source, where it may be deleted; without one it is in DISK itself. A script that was killed
# is run again from its beginning, on the files that it has left.

label=maskwright-data
disk=$root/mnt/maskwright-seed
notes=$disk/.maskwright   # finished work; survives with the disk
ours='(lost\+found|\.maskwright)(/|$)|MANIFEST\.sha256$'   # ours, never files of the source
result='' source='' prepare='' name='' device='' target='' begun=$SECONDS
export CLOUDSDK_CONFIG=${CLOUDSDK_CONFIG:-$run/gcloud} CLOUDSDK_CORE_DISABLE_PROMPTS=1 CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=1

begin() { step=$1; say "$1${2:+: $2}"; }
put_result() { put "$result" "$1" || say 'the result could not be reported'; }
report_failure() {  # WHAT FIX
  if mountpoint -q "$disk"; then umount "$disk" || say "$disk cannot be unmounted"; fi
  [ -n "$result" ] || return 0
  put_result "{\"ok\": false, \"step\": \"$step\", \"what\": $(quote "$1. Fix: $2")}"
  shutdown -h now   # the result is reported, so the machine need not cost more
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
  attribute result maskwright-seed-result 'maskwright env seed'
  attribute environment maskwright-environment 'maskwright env seed'
  attribute source maskwright-seed-source 'maskwright env seed'
  attribute prepare maskwright-seed-prepare
  attribute name maskwright-disk 'maskwright env seed'
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
    step=prepare
    get_script "$prepare" "$run/prepare.sh" 'maskwright env seed'
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
