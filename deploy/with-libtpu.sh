#!/bin/sh
# `maskwright` in TPU images that do not hold libtpu: fetches it once, to the home folder, before the first command that
# computes. An image that others can pull should not hold it (docs/tpu.md). Pods need a way to PyPI: network: {nat: true}.
set -eu
libtpu=${MASKWRIGHT_LIBTPU:-$HOME/.local/share/maskwright/libtpu}
lock=${MASKWRIGHT_LIBTPU_LOCK:-/opt/maskwright/requirements/tpu.lock}
wanted=$libtpu/$(sha256sum <"$lock" | cut -c 1-16)
command=
for word; do
  case "$word" in -*) ;; *) command=$word; break ;; esac
done
fetch() {
  echo "fetching libtpu from the package index (700 MB, Google Cloud's terms: docs/tpu.md)" >&2
  mkdir -p "$libtpu"
  fetched=$(mktemp -d "$libtpu/fetching.XXXXXX")
  trap 'rm -rf "$fetched"' EXIT
  trap 'exit 75' HUP INT TERM
  # 75 is "start me again": the hashes in the lock are right, so what fails is the way to the index.
  python -m pip install --quiet --require-hashes --no-deps --target "$fetched" -r "$lock" ||
    { echo "libtpu cannot be fetched. Fix: network: {nat: true}, or build the image with --libtpu" >&2; exit 75; }
  # The folder is whole or absent. Of two commands that fetch at once, the first to rename its folder wins.
  mv -T "$fetched" "$wanted" 2>/dev/null || [ -d "$wanted" ]
  rm -rf "$fetched"
  trap - EXIT HUP INT TERM
}
case "$command" in
  # What computes nothing, and what takes torch, which these images lack.
  "" | data | doctor | embed | env | evaluate | export | fill | image | import | logs | predict | quickstart | \
    recipes | report | schema | status | stop | submit | sync | tokenizer | watch) ;;
  *) [ -d "$wanted" ] || fetch ;;
esac
[ ! -d "$wanted" ] || export PYTHONPATH="$wanted${PYTHONPATH:+:$PYTHONPATH}"
exec maskwright-itself "$@"
