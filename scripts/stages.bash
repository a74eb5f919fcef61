# Prints each stage of a script with its time, and at the end the stage that failed. Sourced, not run.
#
#   stage "words for the reader" command argument...
#
# The first stage that fails ends the script with that stage's exit status. A script that must clean up defines
# `tidy_up`, which is always called at its end.

say() { printf '%s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$1" >&2
  shift
  local line
  for line in "$@"; do printf '       %s\n' "$line" >&2; done
  exit 1
}

# The command is not called in a condition, since `set -e` has no effect inside functions there.
stage() {
  stage_name=$1
  stage_began=$EPOCHREALTIME
  shift
  say "--- $stage_name"
  "$@"
  say "    $stage_name: $(seconds_since "$stage_began") s"
  stage_name=
}

# EPOCHREALTIME has six decimals; the separator depends on the locale.
seconds_since() {
  local began=${1/[.,]/} now=${EPOCHREALTIME/[.,]/}
  local tenths=$(((now - began + 50000) / 100000))
  printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

at_exit() {
  local status=$?
  if declare -F tidy_up >/dev/null; then tidy_up; fi
  if [ "$status" -ne 0 ] && [ -n "$stage_name" ]; then
    say "*** $stage_name: failed after $(seconds_since "$stage_began") s" >&2
  fi
  exit "$status"
}

stage_name=
trap at_exit EXIT
