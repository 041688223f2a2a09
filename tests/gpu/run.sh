#!/usr/bin/env bash
# Builds mkrt and runs everything that needs a GPU, on a machine that has only gcc, CMake, Ninja, nvcc, doctest and
# nlohmann/json (and Python with torch and transformers for the steps "small-memory" and "reference", and to compare
# with in "bench" and "torch").
#
#   tests/gpu/run.sh [STEP...] [RESULTS-FOLDER]
#
# Steps: build gpu-tests small-memory sanitizer racecheck reference bench torch ranks; all of them where none is named. A
# step that fails or takes too long does not stop the others. "bench" measures first what targets are set for, and
# writes which were met (DATE-GPU-targets.txt); "torch" decodes all of their cases with torch, which "bench" does for the
# first model alone. Results go to RESULTS-FOLDER (tests/bench/results) as DATE-GPU-WHAT.json and .txt, each with device,
# driver, date and commit; a table of what passed comes last.
#
# From the environment:
#   COMMIT  what is measured; otherwise git is asked
#   ALL=1   cubins for every architecture, instead of the present GPU's alone
#   LIMIT   seconds for everything, 540: what would take longer is cut off
#   BUILD   build folder, build/gpu
#   WORK    folder for models and packages, some 45 GB, kept for the next run; in memory where there is plenty
#   JOBS    of the build, all cores
set -uo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$(basename "${BASH_SOURCE[0]}")
cd "$(dirname "$script")/../.." || exit 2

export BUILD=${BUILD:-build/gpu}
if [[ -z ${WORK:-} ]]; then
  free_kb=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
  if ((${free_kb:-0} > 50000000)); then WORK=/dev/shm/mkrt-gpu; else WORK=${TMPDIR:-/tmp}/mkrt-gpu; fi
fi
export WORK

shapes=(llama-3.2-1b qwen2.5-0.5b qwen3-0.6b smollm-135m)
big_shape=llama-3.1-8b
batches=(1 3 16)
context=2048  # of every package but one
# Packages of what is measured, each with its contexts, what targets are set for first (tests/bench/cuda/targets.py).
target_cases=("llama-3.2-1b/batch-1 128 1024" "$big_shape/batch-1 128" "$big_shape/batch-1-context-8448 8192"
  "llama-3.2-1b/batch-8 1024" "qwen3-0.6b/batch-1 128" "$big_shape/batch-16 1024")
other_cases=("qwen2.5-0.5b/batch-1 128 1024" "smollm-135m/batch-1 128 1024" "qwen3-0.6b/batch-1 1024"
  "llama-3.2-1b/batch-3 128" "llama-3.2-1b/batch-16 128")
# What kernels of their own leave out, to see what the rest costs.
left_out=(dependencies products "dependencies;attention" "dependencies;attention;products")
small_chips=(8.6 12.0)  # with 99 KB of shared memory a block; without and with bulk copies
small_batches=(1 16)
steps=(build gpu-tests small-memory sanitizer racecheck reference bench torch ranks)

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

# packages_of SHAPE: what model_package makes of it. They share one copy of the weights.
packages_of() {
  case "$1" in
    "$big_shape") echo 1 1:8448 16 ;;
    llama-3.2-1b) echo "${batches[@]}" 8 ;;
    *) echo "${batches[@]}" ;;
  esac
}

# do_packages SHAPE...: packages of novelist, and of each shape, all shapes at a time. Those that are newer than the
# kernels and the compiler stay.
do_packages() {
  local maker shape stamp process status=0 processes=()
  maker=$(program model_package)
  [[ -n $maker ]] || return 1
  for shape in "$@"; do
    stamp=$WORK/$shape/made
    [[ ! -f $stamp || $maker -nt $stamp || -n $(find "$BUILD/kernels" -name '*.cubin' -newer "$stamp") ]] || continue
    # shellcheck disable=SC2046 # words are meant
    { "$maker" "$shape" "$WORK/$shape" "$context" $(packages_of "$shape") && touch "$stamp"; } &
    processes+=("$!")
  done
  "$maker" tests/data/novelist "$WORK/novelist" 0 1 || status=1
  for process in "${processes[@]}"; do wait "$process" || status=1; done
  # Nothing reads the large model itself, and its place may be memory.
  rm -f "$WORK/$big_shape/model/"*.safetensors
  du -sh "$WORK"
  return "$status"
}

left_out_folder() { printf '%s/left-out-%s' "$BUILD" "${1//;/-}"; }
# Kernels that leave something out, all at a time: each takes one compiler a minute.
do_left_out_build() {
  local parts folder process status=0 processes=()
  for parts in "${left_out[@]}"; do
    folder=$(left_out_folder "$parts")
    { configure "$folder" "-DMKRT_LEAVE_OUT=$parts" && cmake --build "$folder" -j 4 --target mkrt_kernels; } \
      >"$folder.log" 2>&1 &
    processes+=("$!")
  done
  for process in "${processes[@]}"; do wait "$process" || status=1; done
  ((status == 0)) || tail -n 5 "$BUILD"/left-out-*.log
  return "$status"
}
# Models and packages, and meanwhile those kernels.
do_prepare_bench() {
  local status=0 kernels
  do_left_out_build &
  kernels=$!
  do_packages "${shapes[@]}" "$big_shape" || status=1
  wait "$kernels" || status=1
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
# The second is a model whose upload lasts long enough that what is spent once does not count.
do_upload() {
  local packages=("$WORK/${shapes[0]}/batch-1")
  [[ ! -f $WORK/$big_shape/made ]] || packages+=("$WORK/$big_shape/batch-1")
  "$(program mkrt_bench_cuda_upload)" "${packages[@]}" >"$1"
}
# do_decode OUTPUT CASE...: a case is a package and contexts. What takes too long is cut off.
do_decode() {
  local case words status=0
  : >"$1"
  for case in "${@:2}"; do
    read -ra words <<<"$case"
    "$(program mkrt_bench_cuda_decode)" "$WORK/${words[0]}" "${words[@]:1}" >>"$1" || status=1
  done
  return "$status"
}
# The same weights, read by kernels that leave something out: packages with those kernels and links to all else.
do_left_out() {
  local parts folder work status=0
  work=$(realpath "$WORK")
  : >"$1"
  for parts in "${left_out[@]}"; do
    folder=$work/left-out-${parts//;/-}/${shapes[0]}
    rm -rf "$folder"
    mkdir -p "$folder" && cp -rs "$work/${shapes[0]}/batch-1" "$folder/" || return
    cp --remove-destination "$(left_out_folder "$parts")"/kernels/mkrt_llm.*.cubin "$folder/batch-1" || return
    MKRT_BENCH_TOGETHER=1 "$(program mkrt_bench_cuda_decode)" "$folder/batch-1" 128 >>"$1" || status=1
  done
  return "$status"
}
do_beside() { "$(program mkrt_bench_cuda_beside)" "$WORK/${shapes[0]}/batch-1" 128 >"$1"; }

# do_tool_bench JSON: `mkrt bench`, by the tool where its libraries are there.
do_tool_bench() {
  local queue package status=0
  : >"$1"
  for package in "${shapes[0]}/batch-1" "$big_shape/batch-1"; do
    for queue in static dynamic; do
      if [[ -x $BUILD/bin/mkrt ]]; then
        "$BUILD/bin/mkrt" bench "$WORK/$package" --device cuda --around 128 --tokens 64 --queue "$queue" --records \
          --json "$WORK/tool-bench.json" || status=1
      else
        "$BUILD/bin/mkrt_bench_cuda_tool" "$WORK/$package" 128 64 "$queue" "$WORK/tool-bench.json" || status=1
      fi
      [[ ! -f $WORK/tool-bench.json ]] || cat "$WORK/tool-bench.json" >>"$1"
      rm -f "$WORK/tool-bench.json"
    done
  done
  return "$status"
}

# do_targets PREFIX: which targets were met, of the results there are.
do_targets() {
  local of options=()
  for of in left-out beside torch; do [[ ! -s $1-$of.json ]] || options+=("--$of" "$1-$of.json"); done
  python3 tests/bench/cuda/targets.py "$1-decode.json" "${options[@]}" --json "$1-targets.json"
}

# Where the time of a token goes, of every shape at batch 1.
do_trace() {
  local shape status=0
  : >"$1"
  for shape in "${shapes[@]}"; do "$(program mkrt_bench_cuda_trace)" "$WORK/$shape/batch-1" 128 static >>"$1" || status=1; done
  return "$status"
}
# do_torch OUTPUT SECONDS CASE...: what it is compared with; nothing where there is no torch. A case is a shape, a batch
# and contexts. Where one takes too long what is done of it is kept.
do_torch() {
  local case words
  : >"$1"
  python3 -c 'import torch, transformers' 2>/dev/null || return 0
  for case in "${@:3}"; do
    read -ra words <<<"$case"
    python3 tests/bench/cuda/torch_decode.py "$WORK/${words[0]}/model" --batch "${words[1]}" --seconds "$2" \
      --contexts "${words[@]:2}" >>"$1" || return
  done
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
    build | gpu-tests | small-memory | sanitizer | racecheck | reference | bench | torch | ranks) chosen+=("$argument") ;;
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

if wanted bench; then
  log=/dev/null
  attempt "models, packages, kernels" 180 prepare_bench
elif wanted torch; then
  log=/dev/null
  attempt "models and packages" 150 packages "${shapes[@]}" "$big_shape"
elif wanted reference || wanted small-memory; then
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
  attempt "decoding that has targets" 180 decode "$prefix-decode.json" "${target_cases[@]}"
  attempt "decoding beside others" 60 beside "$prefix-beside.json"
  attempt "kernels with parts left out" 60 left_out "$prefix-left-out.json"
  open_log tool-bench
  attempt "mkrt bench" 90 tool_bench "$prefix-tool-bench.json"
  log=/dev/null
  attempt "where a token's time goes" 60 trace "$prefix-trace.json"
  attempt "decoding with torch" 100 torch "$prefix-torch.json" 90 "${shapes[0]} 1 128 1024"
  attempt "cost of an execute" 60 execute_cost "$prefix-execute-cost.json"
  attempt "upload of weights" 60 upload "$prefix-upload.json"
  attempt "other decoding" 90 decode "$prefix-decode-others.json" "${other_cases[@]}"
  finish_json "$prefix-execute-cost.json" "$prefix-upload.json" "$prefix-decode.json" "$prefix-decode-others.json" \
    "$prefix-trace.json" "$prefix-beside.json" "$prefix-left-out.json" "$prefix-tool-bench.json"
  wanted torch || finish_json "$prefix-torch.json"
fi

if wanted torch; then
  log=/dev/null
  attempt "the targets' cases with torch" 420 torch "$prefix-torch.json" 100 "${shapes[0]} 1 128 1024" \
    "qwen3-0.6b 1 128" "${shapes[0]} 8 1024" "$big_shape 1 128"
  finish_json "$prefix-torch.json"
fi

if wanted ranks; then
  open_log ranks-topology
  nvidia-smi topo -m >>"$log" 2>&1
  log=/dev/null
  attempt "exchanges between ranks" 120 ranks "$prefix-ranks.json"
  finish_json "$prefix-ranks.json"
fi

if { wanted bench || wanted torch; } && [[ -s $prefix-decode.json ]]; then
  open_log targets
  printf '\n'
  bash "$script" --do targets "$prefix" 2>&1 | tee -a "$log"
  finish_json "$prefix-targets.json"
fi

{
  header
  printf '%s\n' "${table[@]}"
} >"$prefix-summary.txt"
printf '\n'
cat "$prefix-summary.txt"
exit "$failed"
