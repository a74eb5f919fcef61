# Prints each stage of a script with its time, and at the end the stage that failed. Sourced, not run.
#
#   stage "words for the reader" command argument...
#
# The first stage that fails ends the script with that stage's exit status. A script that must clean up defines
# `tidy_up`, which is always called at its end.
#
#   beside command argument...   runs beside the stages that follow, with the processor time that they leave
#   joined                       waits for it, shows its output, and fails where it failed
#   alone command argument...    waits until no other script builds: two builds at once would damage their common folder

# Python keeps bytecode, whatever the environment says: otherwise hundreds of processes would each compile what they
# import, torch in 3 seconds.
export PYTHONDONTWRITEBYTECODE=

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

# Job control gives the command a process group of its own, so that all of it can be ended.
beside() {
  beside_log=$(mktemp)
  set -m
  (
    beside_pid=
    trap at_exit EXIT
    renice -n 5 "$BASHPID" >/dev/null
    "$@"
  ) >"$beside_log" 2>&1 </dev/null &
  beside_pid=$!
  set +m
}

joined() {
  local status=0
  say "    waiting for what runs beside the other stages; its output follows"
  # Other programs on the machine would hold it up for long now. Only root may raise a priority.
  renice 0 -g "$beside_pid" >/dev/null 2>&1 || true
  wait "$beside_pid" || status=$?
  beside_pid=
  cat "$beside_log"
  rm "$beside_log"
  return "$status"
}

# A system without flock, such as macOS, runs the command at once.
alone() {
  mkdir -p build
  (
    if command -v flock >/dev/null; then flock 9; fi
    "$@" 9>&-
  ) 9>build/lock
}

# EPOCHREALTIME has six decimals; the separator depends on the locale.
seconds_since() {
  local began=${1/[.,]/} now=${EPOCHREALTIME/[.,]/}
  local tenths=$(((now - began + 50000) / 100000))
  printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

at_exit() {
  local status=$?
  if [ -n "$beside_pid" ]; then
    kill -TERM -- "-$beside_pid" 2>/dev/null || true
    rm -f "$beside_log"
  fi
  if declare -F tidy_up >/dev/null; then tidy_up; fi
  if [ "$status" -ne 0 ] && [ -n "$stage_name" ]; then
    say "*** $stage_name: failed after $(seconds_since "$stage_began") s" >&2
  fi
  exit "$status"
}

stage_name=
beside_pid=
trap at_exit EXIT
