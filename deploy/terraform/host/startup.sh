# Runs as root at every boot of a host, from the instance's metadata (key startup-script, after common.sh): mounts disk
# and NFS, runs the user's set-up script, pulls the container and keeps the agent running in it. Every step can be
# repeated. docs/google-cloud-hosts.md describes it.

state=$root/var/lib/maskwright   # survives a reboot
name=maskwright-agent
instance='' reports='' digest='' version=''
kind='' hosts='' spec='' mount_point='' nfs='' disk='' container='' wanted='' setup='' idle_minutes='' index=''

# ---- health ----------------------------------------------------------------------------------------------------------

health() {  # true|false TEXT [final]: for `maskwright env status` and the watcher; final: nothing is retried
  local text
  [ -n "$reports" ] || return 0
  text=$(printf '{"step": %s, "ok": %s, "final": %s, "what": %s, "time": %s, "instance": %s, "image": %s, "versions": {"maskwright": %s, "kernel": %s}}' \
    "$(quote "$step")" "$1" "$([ -n "${3:-}" ] && echo true || echo false)" "$(quote "$2")" "$(date +%s)" "$(quote "$instance")" "$(quote "$digest")" \
    "$(quote "$version")" "$(quote "$(uname -r)")")
  put "$reports/health/$instance.json" "$text" || say "health could not be reported"
}
begin() { step=$1; say "$1${2:+: $2}"; health true "${2:-}"; }
power_off() {  # TEXT [&ifGenerationMatch=0]: with a note, so that the watcher does not recreate the host before there is a job
  local code=0
  put "$reports/idle/$instance.json" "{\"what\": $(quote "$1"), \"time\": $(date +%s)}" "${2:-}" || code=$?
  [ "$code" -eq 0 ] || [ "$code" -eq 5 ] || say "the note could not be written"
  say "$1: powering off"
  shutdown -h now
}
report_failure() {  # WHAT FIX
  health false "$1. Fix: $2" final
  if [ -n "$reports" ] && [ -n "$idle_minutes" ]; then
    say "the host stays up for $idle_minutes minutes, for inspection"
    sleep "${idle_minutes}m" 9>&-
    power_off "start-up failed at $step: $1"
  fi
}

# ---- mounts ----------------------------------------------------------------------------------------------------------

install_package() {  # NAME: from the distribution, if there is one and the network reaches it
  command -v apt-get >/dev/null || return 1
  say "installing $1"
  local get=(apt-get -qq -o "DPkg::Lock::Timeout=$patience" -o Acquire::Retries=2 -o Acquire::http::Timeout=20)
  "${get[@]}" update </dev/null &&
    DEBIAN_FRONTEND=noninteractive "${get[@]}" install -y --no-install-recommends "$1" </dev/null
}
mount_nfs() {
  [ -n "$nfs" ] || return 0
  begin mount-nfs "$nfs"
  mkdir -p "$mounts/nfs_share"
  ! mountpoint -q "$mounts/nfs_share" || return 0
  # nolock: on an NFS 3 server, locks of a host that was deleted stay for ever, so its run could not continue. The lease
  # of a run (run/lease.py) ensures that only one process writes its folder.
  local options=hard,timeo=600,retrans=3,vers=3,nolock
  if ! command -v mount.nfs >/dev/null && ! install_package nfs-common; then
    # The kernel needs no helper if the address is numeric.
    say 'mount.nfs is missing: mounting with the kernel alone'
    again mount -i -t nfs -o "$options,addr=${nfs%%:*}" "$nfs" "$mounts/nfs_share" ||
      fail "$nfs cannot be mounted" 'use an image with nfs-common, or network: {nat: true}; then check the NFS with maskwright env status'
    return 0
  fi
  again mount -t nfs -o "$options" "$nfs" "$mounts/nfs_share" ||
    fail "$nfs cannot be mounted" 'check that the NFS exists (maskwright env status), and the firewall of its network'
}
mount_disk() {
  [ -n "$disk" ] || return 0
  begin mount-disk "$disk"
  local device=$root/dev/disk/by-id/google-$disk
  again test -e "$device" || fail "the disk $disk is not attached" 'maskwright env up'
  mkdir -p "$mounts/shared_pd"
  ! mountpoint -q "$mounts/shared_pd" || return 0
  # noload: ext4 refuses a read-only disk on which it would have to replay its journal.
  again mount -o ro,noload "$device" "$mounts/shared_pd" ||
    fail "the disk $disk cannot be mounted" 'seed it first: maskwright env seed'
}

# ---- the user's set-up script, docker, the container -----------------------------------------------------------------

run_setup() {
  [ -n "$setup" ] || return 0
  begin setup "$setup"
  local file=$state/setup.sh stamp
  get_script "$setup" "$file" 'maskwright env up'
  stamp=$state/setup-$(sha256sum <"$file" | cut -c 1-16).done
  [ ! -e "$stamp" ] || return 0
  MASKWRIGHT_MOUNT_POINT=$mounts MASKWRIGHT_KIND=$kind MASKWRIGHT_ENVIRONMENT=$environment bash "$file" </dev/null 9>&- ||
    fail "the set-up script ended with $?" 'see its output in the log; correct host.setup, then maskwright env up'
  : >"$stamp"
}
find_docker() {
  begin docker
  command -v docker >/dev/null || install_package docker.io ||
    fail 'this image has no docker, and it cannot be installed' 'use network: {nat: true}, an image with docker, or a host.setup that installs it'
  again docker info >/dev/null || fail 'docker does not answer' 'see its service on the host: journalctl -u docker'
}
pull() {
  begin pull "$container"
  mkdir -p "$run/docker"
  chmod 700 "$run/docker"
  case ${container%%/*} in
    *-docker.pkg.dev | gcr.io | *.gcr.io)
      # Docker stores the token for a few minutes, in a file system in memory.
      token | docker --config "$run/docker" login -u oauth2accesstoken --password-stdin "https://${container%%/*}" >/dev/null ||
        fail "cannot log in to ${container%%/*}" "the environment's service account needs roles/artifactregistry.reader: maskwright env up" ;;
  esac
  again docker --config "$run/docker" pull -q "$container" || fail "$container cannot be pulled" 'build it: maskwright env image'
  rm -rf "$run/docker"
}
check_image() {
  begin version "$wanted"
  local repository=${container%@*}
  case ${repository##*/} in *:*) repository=${repository%:*} ;; esac
  digest=$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$container" | sed -n "s#^$repository@##p" | head -n 1)
  [ -n "$digest" ] || fail "$container has no digest" 'pull it from a registry: maskwright env image'
  version=$(docker run --rm --network none --entrypoint maskwright "$container" --version | sed 's/^maskwright //') ||
    fail "$container does not run maskwright" 'build it: maskwright env image'
  [ "$version" = "$wanted" ] ||
    fail "$container has maskwright $version, but the environment wants $wanted" 'maskwright env image, then maskwright env up'
}

# ---- the agent -------------------------------------------------------------------------------------------------------

nvidia() { grep -qsi 0x10de "$root"/sys/bus/pci/devices/*/vendor; }
gpu_options() {
  nvidia || return 0
  begin gpu
  if grep -qs '^ID=cos' "$root/etc/os-release"; then
    # Container-Optimized OS has no NVIDIA toolkit: its driver is in a folder that must be remounted as executable.
    again cos-extensions install gpu </dev/null || fail 'the GPU driver cannot be installed' 'see cos-extensions in the log, or use another group.image'
    mountpoint -q "$root/var/lib/nvidia" || mount --bind "$root/var/lib/nvidia" "$root/var/lib/nvidia"
    mount -o remount,exec "$root/var/lib/nvidia"
    options+=(--volume /var/lib/nvidia/lib64:/usr/local/nvidia/lib64 --volume /var/lib/nvidia/bin:/usr/local/nvidia/bin)
    options+=(--env LD_LIBRARY_PATH=/usr/local/nvidia/lib64)
    local device
    for device in "$root"/dev/nvidia*; do
      [ -d "$device" ] || options+=(--device "${device#"$root"}")
    done
    return 0
  fi
  again test -e "$root/dev/nvidia0" || fail 'there is a GPU and no driver' 'use an image with the NVIDIA driver (group.image)'
  command -v nvidia-ctk >/dev/null || command -v nvidia-container-cli >/dev/null ||
    fail 'docker cannot use the GPU' 'use an image with the NVIDIA container toolkit (group.image), or a host.setup that installs it'
  options+=(--gpus all)
}
agent_options() {
  options=(--name "$name" --init --net host --shm-size 16g --ulimit memlock=-1 --ulimit nofile=1048576 --stop-timeout 120)
  [ "$kind" != slice ] || options+=(--privileged)
  gpu_options
  # Its home outlives the container: it has compiled programs, and runs in a relative folder.
  options+=(--volume "$state/home:/var/lib/maskwright/home" --env HOME=/var/lib/maskwright/home --workdir /var/lib/maskwright/home)
  options+=(--volume "$mounts:$mount_point")
  local pair
  for pair in "MASKWRIGHT_IMAGE=$digest" "MASKWRIGHT_ENVIRONMENT=$environment" "MASKWRIGHT_MOUNT_POINT=$mount_point"; do
    options+=(--env "$pair")
  done
  # Else gcsfs first asks for each bucket's kind by gRPC, with a timeout of a minute; ours are not hierarchical.
  options+=(--env GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false)
  words=(agent "$spec" --num-hosts "$hosts" --instance "$instance")
  [ -z "$index" ] || words+=(--host-index "$index")
  [ -z "$idle_minutes" ] || words+=(--idle-minutes "$idle_minutes")
}
start_agent() {
  local label running
  label=$(printf '%s ' "$digest" "${options[@]}" "${words[@]}" | sha256sum | cut -c 1-16)
  running=$(docker inspect --format '{{.State.Running}} {{index .Config.Labels "maskwright"}}' "$name" 2>/dev/null) || running=
  [ "$running" != "true $label" ] || return 0
  [ -z "$running" ] || { docker stop -t 120 "$name" >/dev/null && docker rm -f "$name" >/dev/null; }
  set -- --label "maskwright=$label" "${options[@]}" --entrypoint maskwright "$container" "${words[@]}"
  # The daemon of a Google host sends the log to Cloud Logging. Secrets are already redacted (core/secrets.py).
  if ! docker run --detach --log-driver gcplogs "$@" >/dev/null; then
    docker rm -f "$name" >/dev/null 2>&1 || true
    say 'no Cloud Logging for the container: its log stays on the host (docker logs), that of jobs in the bucket'
    docker run --detach --log-driver local "$@" >/dev/null || fail 'the container cannot be started' 'see the line of docker before this one in the log'
  fi
}
keep_agent() {
  local code last wait=1 begun failing=$SECONDS
  while :; do
    begun=$SECONDS
    start_agent
    begin agent "host ${index:-not fixed}, $hosts hosts"
    code=$(docker wait "$name" 9>&-) || code=unknown
    case $code in
      0) power_off "no job for $idle_minutes minutes" '&ifGenerationMatch=0'; return 0 ;;  # keeps the agent's own note
      75) step=stopped; say 'the agent was told to stop'; health true 'the agent was told to stop'; return 0 ;;
    esac
    last=$(docker logs --tail 1 "$name" 2>&1 | tail -n 1) || last=''
    docker rm -f "$name" >/dev/null 2>&1 || true
    say "the agent ended with $code: $last"
    if [ $((SECONDS - begun)) -gt 600 ]; then wait=1 failing=$SECONDS; fi
    if [ -n "$idle_minutes" ] && [ $((SECONDS - failing)) -ge $((${idle_minutes%.*} * 60 + 60)) ]; then
      fail "the agent keeps failing, last with $code: $last" 'correct that error, then maskwright env up'
    fi
    health false "the agent ended with $code: $last"
    sleep "$wait" 9>&-
    wait=$((wait * 2 > 300 ? 300 : wait * 2))
  done
}

main() {
  mkdir -p "$state/home" "$run"
  exec 9>"$run/startup.lock"
  flock -n 9 || { reported=yes; say 'is already running'; exit 0; }
  instance=$(meta name) || fail 'the metadata server does not answer' 'run it on a Google host'
  attribute spec maskwright-spec 'maskwright env up'
  reports=${spec%/job.json}/reports
  attribute idle_minutes maskwright-idle-minutes
  attribute environment maskwright-environment 'maskwright env up'
  attribute kind maskwright-kind 'maskwright env up'
  attribute hosts maskwright-hosts 'maskwright env up'
  attribute mount_point maskwright-mount-point 'maskwright env up'
  attribute container maskwright-container 'maskwright env up'
  attribute wanted maskwright-version 'maskwright env up'
  attribute nfs maskwright-nfs
  attribute disk maskwright-disk
  attribute setup maskwright-setup
  attribute index agent-worker-number
  [ -n "$index" ] || attribute index worker-id
  case $instance in
    "$environment-$kind"-*) ;;
    *) [ -z "$index" ] || instance=$environment-$kind-w-$index ;;  # Google names the hosts of a TPU node itself
  esac
  mounts=$root$mount_point
  # The root of Container-Optimized OS is read-only. The container sees the same paths nevertheless.
  mkdir -p "$mounts" 2>/dev/null || { mounts=$state/mnt; mkdir -p "$mounts"; }
  begin boot "$environment $kind"
  mount_nfs
  mount_disk
  run_setup
  find_docker
  pull
  check_image
  agent_options
  keep_agent
}
main
