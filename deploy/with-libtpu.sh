#!/bin/sh
# `maskwright` in TPU images that do not hold libtpu: fetches it once, to the home folder, before the first command that
# computes. An image that others can pull should not hold it (docs/tpu.md). Hosts need a way to PyPI: network: {nat: true}.
set -eu
libtpu=${MASKWRIGHT_LIBTPU:-$HOME/.local/share/maskwright/libtpu}
lock=${MASKWRIGHT_LIBTPU_LOCK:-/opt/maskwright/requirements/tpu.lock}
command=
for word; do
  case "$word" in -*) ;; *) command=$word; break ;; esac
done
case "$command" in
  # What computes nothing, and what takes torch, which these images lack.
  "" | data | doctor | embed | env | evaluate | export | fill | forward | image | import | list | logs | predict | quickstart | \
    recipes | report | schema | status | stop | submit | text | tokenizer | watch) ;;
  *)
    stamp=$libtpu/$(sha256sum <"$lock" | cut -c 1-16).done
    if [ ! -e "$stamp" ]; then
      echo "fetching libtpu from the package index (700 MB, Google Cloud's terms: docs/tpu.md)" >&2
      rm -rf "$libtpu"
      mkdir -p "$libtpu"
      python -m pip install --quiet --require-hashes --no-deps --target "$libtpu" -r "$lock" ||
        { echo "libtpu cannot be fetched. Fix: network: {nat: true}, or build the image with --libtpu" >&2; exit 1; }
      : >"$stamp"
    fi
    ;;
esac
[ ! -d "$libtpu" ] || export PYTHONPATH="$libtpu${PYTHONPATH:+:$PYTHONPATH}"
exec maskwright-itself "$@"
