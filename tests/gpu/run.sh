#!/usr/bin/env bash
# Builds mkrt and runs everything that needs a GPU, on a machine that has only gcc, CMake, Ninja, nvcc, doctest and
# nlohmann/json (and Python with torch and transformers for the steps "small-memory" and "reference", and to compare
# with in "bench").
#
#   tests/gpu/run.sh [STEP...] [RESULTS-FOLDER]
#
# Steps: build gpu-tests small-memory sanitizer racecheck reference bench ranks; all of them where none is named. A step
# that fails or takes too long does not stop the others. Results go to RESULTS-FOLDER (tests/bench/results) as
# DATE-GPU-WHAT.json and .txt, each with device, driver, date and commit; a table of what passed comes last.
#
# From the environment:
#   COMMIT  what is measured; otherwise git is asked
#   ALL=1   cubins for every architecture, instead of the present GPU's alone
#   LIMIT   seconds for everything, 540: what would take longer is cut off
#   BUILD   build folder, build/gpu
#   WORK    folder for models and packages, some 50 GB, kept for the next run; in memory where there is plenty
#   JOBS    of the build, all cores
set -uo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$(basename "${BASH_SOURCE[0]}")
cd "$(dirname "$script")/../.." || exit 2

export BUILD=${BUILD:-build/gpu}
if [[ -z ${WORK:-} ]]; then
  free_kb=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
  if ((${free_kb:-0} > 60000000)); then WORK=/dev/shm/mkrt-gpu; else WORK=${TMPDIR:-/tmp}/mkrt-gpu; fi
fi
export WORK

shapes=(llama-3.2-1b qwen2.5-0.5b qwen3-0.6b smollm-135m)
big_shape=llama-3.1-8b
batches=(1 3 16)
context=2048  # of every package: the largest that is measured is 1024
small_chips=(8.6 12.0)  # with 99 KB of shared memory a block; without and with bulk copies
small_batches=(1 16)
steps=(build gpu-tests small-memory sanitizer racecheck reference bench ranks)

# ---- What steps do: each of these runs in a process of its own, with a time limit ----------------------------------

ask_gpu() { nvidia-smi --id=0 "--query-gpu=$1" --format=csv,noheader 2>/dev/null | head -n 1; }

program() { find "$BUILD/tests" -name "$1" -type f -perm -u+x | head -n 1; }

# configure FOLDER OPTION...
configure() {
  local architectures=() capability
  capability=$(ask_gpu compute_cap | tr -d .)
  # Architecture-specific code for Hopper, as in cmake/mkrt_cuda.cmake.
  [[ $capability != 90 ]] || capability=90a
  [[ -n ${ALL:-} || -z $capability ]] || architectures=("-DMKRT_CUDA_ARCHITECTURES=sm_$capability")
  cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=Release "${architectures[@]}" "${@:2}"
}

do_build() {
  configure "$BUILD" || return
  cmake --build "$BUILD" -j "${JOBS:-$(nproc)}" --target tests_gpu cuda_benchmarks mkrt_bench_ranks
}

# do_packages SHAPE...: packages of novelist, and of each shape for every batch, all shapes at a time. Those that are
# newer than the kernels and the compiler stay.
do_packages() {
  local maker shape stamp process status=0 processes=()
  maker=$(program model_package)
  [[ -n $maker ]] || return 1
  for shape in "$@"; do
    stamp=$WORK/$shape/made
    [[ ! -f $stamp || $maker -nt $stamp || -n $(find "$BUILD/kernels" -name '*.cubin' -newer "$stamp") ]] || continue
    { "$maker" "$shape" "$WORK/$shape" "$context" "${batches[@]}" && touch "$WORK/$shape/made"; } &
    processes+=("$!")
  done
  "$maker" tests/data/novelist "$WORK/novelist" 0 1 || status=1
  for process in "${processes[@]}"; do wait "$process" || status=1; done
  du -sh "$WORK"
  return "$status"
}

do_tests() {
  local gpus
  gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
  # Models of real shapes go where there is room for them.
  TMPDIR=$WORK MKRT_REQUIRE_GPU=$((gpus > 1 ? gpus : 1)) ctest --test-dir "$BUILD" -L gpu -V --no-tests=error
}

# Kernels as for chips of compute capability 8.6 and 12.0, which take no more shared memory on this one either.
do_small_build() {
  local chip
  configure "$BUILD/chip-8.6" -DMKRT_SHARED_MEMORY=$((99 * 1024)) -DMKRT_BULK_COPY=OFF || return
  configure "$BUILD/chip-12.0" -DMKRT_SHARED_MEMORY=$((99 * 1024)) || return
  for chip in "${small_chips[@]}"; do
    cmake --build "$BUILD/chip-$chip" -j "${JOBS:-$(nproc)}" --target mkrt_kernels || return
  done
}
# do_small_tests CHIP
do_small_tests() {
  MKRT_REQUIRE_GPU=1 MKRT_TEST_KERNELS=$BUILD/chip-$1/kernels "$(program gpu_test)" --source-file='*decoding_test*'
}
# do_small_reference CHIP OUTPUT: packages with those kernels, and links to everything else.
do_small_reference() {
  local work folder shape batch
  work=$(realpath "$WORK")
  folder=$work/chip-$1
  rm -rf "$folder"
  for shape in "${shapes[@]}"; do
    mkdir -p "$folder/$shape" && ln -s "$work/$shape/model" "$folder/$shape/model" || return
    for batch in "${small_batches[@]}"; do
      cp -rs "$work/$shape/batch-$batch" "$folder/$shape/" || return
      cp --remove-destination "$BUILD/chip-$1"/kernels/*.cubin "$folder/$shape/batch-$batch" || return
    done
  done
  : >"$2"
  python3 tests/gpu/reference.py --decode-logits "$(program decode_logits)" --models "$folder" --output "$2" \
    --batches "${small_batches[@]}" --sm-limits 0 --shapes "${shapes[@]}"
}

# do_sanitize TOOL: few SMs, because the tool slows every access and results do not depend on their number.
do_sanitize() {
  compute-sanitizer --tool "$1" --error-exitcode 9 "$(program decode_logits)" cuda 4 8,1 "$WORK/novelist/batch-1"
}

# Kernels in which racecheck can follow the order between warps, and novelist's package with them.
do_racecheck_build() {
  local package=$WORK/novelist/racecheck
  configure "$BUILD/racecheck" -DMKRT_CHECK_ARRIVALS=ON || return
  cmake --build "$BUILD/racecheck" -j "${JOBS:-$(nproc)}" --target mkrt_kernels || return
  rm -rf "$package"
  cp -r "$WORK/novelist/batch-1" "$package" && cp "$BUILD"/racecheck/kernels/*.cubin "$package"
}

# One token in, one out, in both queue modes: racecheck follows every access to shared memory.
do_racecheck() {
  compute-sanitizer --tool racecheck --racecheck-report analysis --error-exitcode 9 \
    "$(program decode_logits)" cuda 1+1 8 "$WORK/novelist/racecheck"
}

do_reference() {
  : >"$1"
  python3 tests/gpu/reference.py --decode-logits "$(program decode_logits)" --models "$WORK" --output "$1" \
    --batches "${batches[@]}" --sm-limits 0 64 1 --shapes "${shapes[@]}"
}

do_execute_cost() { "$(program mkrt_bench_cuda_execute_cost)" "$WORK/novelist/batch-1" >"$1"; }
# A model whose upload lasts long enough that what is spent once does not count.
do_big_package() {
  [[ -f $WORK/$big_shape/made ]] && return
  "$(program model_package)" "$big_shape" "$WORK/$big_shape" "$context" 1 && touch "$WORK/$big_shape/made"
}
do_upload() {
  local packages=("$WORK/${shapes[0]}/batch-1")
  [[ ! -f $WORK/$big_shape/made ]] || packages+=("$WORK/$big_shape/batch-1")
  "$(program mkrt_bench_cuda_upload)" "${packages[@]}" >"$1"
}
# Batch 1 of every shape first: what takes too long is cut off.
do_decode() {
  local shape batch package status=0 packages=()
  for batch in "${batches[@]}"; do
    for shape in "${shapes[@]}"; do packages+=("$WORK/$shape/batch-$batch"); done
    ((batch > 1)) || [[ ! -f $WORK/$big_shape/made ]] || packages+=("$WORK/$big_shape/batch-1")
  done
  : >"$1"
  for package in "${packages[@]}"; do "$(program mkrt_bench_cuda_decode)" "$package" 128 1024 >>"$1" || status=1; done
  return "$status"
}

# Where the time of a token goes, of every shape at batch 1.
do_trace() {
  local shape status=0
  : >"$1"
  for shape in "${shapes[@]}"; do "$(program mkrt_bench_cuda_trace)" "$WORK/$shape/batch-1" 128 static >>"$1" || status=1; done
  return "$status"
}
# What it is compared with; nothing where there is no torch.
do_torch_decode() {
  python3 -c 'import torch, transformers' 2>/dev/null || return 0
  python3 tests/bench/cuda/torch_decode.py "$WORK/${shapes[0]}/model" >"$1"
}

# NCCL where Python's packages have it; it lies in no folder that a program would look into. Packages of its own go to
# $WORK, which is in memory where there is plenty.
do_ranks() {
  local nccl
  nccl=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nccl").submodule_search_locations[0])' 2>/dev/null)
  TMPDIR=$WORK LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${nccl:+$nccl/lib} "$(program mkrt_bench_ranks)" >"$1"
}

if [[ ${1:-} == --do ]]; then
  "do_$2" "${@:3}"
  exit
fi

# ---- Arguments and results -----------------------------------------------------------------------------------------

chosen=()
results=tests/bench/results
for argument in "$@"; do
  case "$argument" in
    -h | --help)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$script"
      exit 0
      ;;
    build | gpu-tests | small-memory | sanitizer | racecheck | reference | bench | ranks) chosen+=("$argument") ;;
    -*)
      printf 'unknown option %s\n' "$argument" >&2
      exit 2
      ;;
    *) results=$argument ;;
  esac
done
((${#chosen[@]})) || chosen=("${steps[@]}")
mkdir -p "$results" "$WORK" || exit 2
results=$(cd "$results" && pwd)

DEVICE=$(ask_gpu name)
DRIVER=$(ask_gpu driver_version)
COMMIT=${COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
export DEVICE DRIVER COMMIT
slug=$(printf '%s' "${DEVICE:-no-gpu}" | sed 's/^NVIDIA //' | tr '[:upper:] ' '[:lower:]-' | tr -cd 'a-z0-9-')
prefix=$results/$(date -u +%Y-%m-%d)-$slug

header() {
  printf 'device: %s\ndriver: %s\ndate: %s\ncommit: %s\n' "${DEVICE:-none}" "${DRIVER:-none}" \
    "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$COMMIT"
}
# Begins a result file of text, which the commands after it fill.
open_log() {
  log=$prefix-$1.txt
  header >"$log"
}

# finish_json FILE...: each holds JSON values one after the other; becomes one object with device, driver, date, commit.
finish_json() {
  python3 - "$@" <<'PYTHON'
import datetime, json, os, sys

for name in sys.argv[1:]:
    if not os.path.exists(name):
        continue
    with open(name) as file:
        text = file.read().strip()
    results = []
    while text:
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except ValueError:  # of a program that was cut off
            break
        results.append(value)
        text = text[end:].lstrip()
    whole = {
        "device": os.environ["DEVICE"],
        "driver": os.environ["DRIVER"],
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": os.environ["COMMIT"],
        "results": results,
    }
    with open(name, "w") as file:
        json.dump(whole, file, indent=1)
        file.write("\n")
PYTHON
}

table=()
failed=0
end=$((SECONDS + ${LIMIT:-540}))
log=/dev/null
# attempt NAME SECONDS FUNCTION ARGUMENT...: runs do_FUNCTION for at most so long; output goes to the terminal and $log.
attempt() {
  local name=$1 limit=$2 begin=$SECONDS status outcome=ok
  shift 2
  ((limit <= end - SECONDS)) || limit=$((end - SECONDS))
  printf '\n== %s\n' "$name"
  if ((limit > 0)); then
    timeout --kill-after=5 "$limit" bash "$script" --do "$@" 2>&1 | tee -a "$log"
    status=${PIPESTATUS[0]}
  else
    status=124
  fi
  if ((status == 124 || status == 137)); then
    outcome="FAILED: longer than $limit s"
  elif ((status != 0)); then
    outcome="FAILED: status $status"
  fi
  [[ $outcome == ok ]] || failed=1
  table+=("$(printf '%-30s %-28s %4d s' "$name" "$outcome" $((SECONDS - begin)))")
  [[ $outcome == ok ]]
}
wanted() { [[ " ${chosen[*]} " == *" $1 "* ]]; }

# ---- Steps ---------------------------------------------------------------------------------------------------------

header
[[ -n $DEVICE ]] || printf 'nvidia-smi names no GPU: what needs one fails or is skipped\n'

if wanted build; then
  open_log build
  attempt build 300 build
fi

if wanted gpu-tests; then
  open_log gpu-tests
  attempt "tests on the GPU" 240 tests
fi

if wanted reference || wanted bench || wanted small-memory; then
  log=/dev/null
  attempt "models and packages" 150 packages "${shapes[@]}"
elif wanted sanitizer || wanted racecheck; then
  log=/dev/null
  attempt "novelist's package" 30 packages
fi

if wanted small-memory; then
  log=/dev/null
  if attempt "kernels for 99 KB" 150 small_build; then
    open_log small-memory
    for chip in "${small_chips[@]}"; do attempt "tests as on $chip" 120 small_tests "$chip"; done
    log=/dev/null
    for chip in "${small_chips[@]}"; do
      attempt "logits as on $chip" 120 small_reference "$chip" "$prefix-small-memory-$chip.json"
      finish_json "$prefix-small-memory-$chip.json"
    done
  fi
fi

if wanted sanitizer; then
  open_log sanitizer
  for tool in memcheck synccheck; do attempt "compute-sanitizer $tool" 120 sanitize "$tool"; done
fi

if wanted racecheck; then
  log=/dev/null
  if attempt "kernels for racecheck" 150 racecheck_build; then
    open_log racecheck
    attempt "compute-sanitizer racecheck" 120 racecheck
    printf '%s\n' "${table[-1]}" >>"$log"  # also where it was cut off
  fi
fi

if wanted reference; then
  log=/dev/null
  attempt "logits of transformers" 420 reference "$prefix-reference.json"
  finish_json "$prefix-reference.json"
fi

if wanted bench; then
  log=/dev/null
  attempt "a large package" 120 big_package
  attempt "cost of an execute" 60 execute_cost "$prefix-execute-cost.json"
  attempt "upload of weights" 60 upload "$prefix-upload.json"
  attempt "decoding" 120 decode "$prefix-decode.json"
  attempt "where a token's time goes" 60 trace "$prefix-trace.json"
  attempt "decoding with torch" 60 torch_decode "$prefix-torch-decode.json"
  finish_json "$prefix-execute-cost.json" "$prefix-upload.json" "$prefix-decode.json" "$prefix-trace.json" \
    "$prefix-torch-decode.json"
fi

if wanted ranks; then
  open_log ranks-topology
  nvidia-smi topo -m >>"$log" 2>&1
  log=/dev/null
  attempt "exchanges between ranks" 120 ranks "$prefix-ranks.json"
  finish_json "$prefix-ranks.json"
fi

{
  header
  printf '%s\n' "${table[@]}"
} >"$prefix-summary.txt"
printf '\n'
cat "$prefix-summary.txt"
exit "$failed"
