#include "cli/decoder.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>

#include "cli/error.hpp"
#include "cli/format.hpp"

namespace mkrt::cli {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = 100ms;  // how often a wait looks whether the user stopped it

// The whole of `text` as a decimal number of at most `most`.
std::optional<uint64_t> parse_number(std::string_view text, uint64_t most) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value > most) return std::nullopt;
  return value;
}

// Index of a tensor that every language model has. `shape` says what is expected for the sentence.
uint32_t find_model_tensor(const Program& program, const char* name, uint32_t dtype, uint32_t dimensions) {
  uint32_t index = 0;
  try {
    index = program.find_tensor(name);
  } catch (const mkrt::Error&) {
    throw Error(std::string("the package is no language model of mkrt compile: it has no tensor ") + name);
  }
  const TensorInfo info = program.tensor_info(index);
  if (info.dtype != dtype || info.dimension_count != dimensions || info.dimensions()[0] > UINT32_MAX ||
      info.dimensions()[dimensions - 1] > UINT32_MAX) {
    throw Error(std::string("the package is no language model of mkrt compile: its tensor ") + name +
                " has another type or shape");
  }
  return index;
}

}  // namespace

std::vector<RankOptions> describe_ranks(const RunOptions& options, uint32_t rank_count) {
  RankOptions rank;
  rank.worker_count = options.workers;
  const std::string_view device = options.device;
  if (device == "host") {
    rank.kind = MKRT_DEVICE_HOST;
  } else if (device == "cuda") {
    rank.kind = MKRT_DEVICE_CUDA;
  } else if (device.starts_with("cuda:") && parse_number(device.substr(5), UINT16_MAX)) {
    rank.kind = MKRT_DEVICE_CUDA;
    rank.ordinal = static_cast<uint32_t>(*parse_number(device.substr(5), UINT16_MAX));
  } else if (device != "default") {
    throw Error("there is no device \"" + options.device + "\": say host, cuda or cuda:N");
  }
  std::vector<RankOptions> ranks(rank_count, rank);
  for (uint32_t i = 0; i < rank_count; ++i) ranks[i].ordinal += i;
  return ranks;
}

std::string device_option(const DeviceInfo& device) {
  return device.kind == MKRT_DEVICE_HOST ? "host" : "cuda:" + std::to_string(device.ordinal);
}

std::string metadata(const Program& program, const char* key) {
  try {
    return std::string(program.metadata(key));
  } catch (const mkrt::Error&) {
    throw Error(std::string("the package's metadata has no \"") + key + "\"");
  }
}

uint64_t metadata_number(const Program& program, const char* key) {
  const std::string text = metadata(program, key);
  if (const auto value = parse_number(text, uint64_t{1} << 62)) return *value;
  throw Error(std::string("the package's metadata has \"") + key + "\": \"" + text + "\", which is no number");
}

std::vector<int32_t> metadata_tokens(const Program& program, const char* key) {
  std::string_view rest;
  try {
    rest = program.metadata(key);
  } catch (const mkrt::Error&) {
    return {};
  }
  std::vector<int32_t> tokens;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const auto token = parse_number(rest.substr(0, comma), INT32_MAX);
    if (!token) throw Error(std::string("the package's metadata has \"") + key + "\", which are no token numbers");
    tokens.push_back(static_cast<int32_t>(*token));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return tokens;
}

void Decoder::keep_warning(void* decoder, uint32_t level, const char* message) {
  std::string& warnings = static_cast<Decoder*>(decoder)->warnings_;
  if (level <= MKRT_LOG_WARNING) warnings += (warnings.empty() ? "" : "; ") + std::string(message);
}

// Where the user named no device, a package that has nothing for the GPU runs on the host, and device_text says so.
Executable Decoder::load(const RunOptions& options) {
  // One thread reads cached files at about 10 GB/s, a GPU's bus takes up to 55; more than four share the same memory.
  constexpr uint32_t loader_threads = 4;
  try {
    return Executable(program_, mesh_, 0, loader_threads);
  } catch (const mkrt::Error& error) {
    const bool may_change = options.device == "default" && mesh_.device_info().kind == MKRT_DEVICE_CUDA;
    if (error.status() != MKRT_ERROR_UNSUPPORTED || !may_change) throw;
    keep_warning(this, MKRT_LOG_WARNING, error.what());
  }
  RunOptions on_host = options;
  on_host.device = "host";
  mesh_ = Mesh(runtime_, describe_ranks(on_host, program_.info().rank_count));
  return Executable(program_, mesh_);
}

Decoder::Decoder(const std::string& package, const RunOptions& options, Interrupt& interrupt)
    : interrupt_(interrupt),
      runtime_([this] {
        mkrt_runtime_desc desc{};
        desc.user_data = this;
        desc.log = keep_warning;
        return desc;
      }()),
      program_(runtime_, package),
      mesh_(runtime_, describe_ranks(options, program_.info().rank_count)),
      executable_(load(options)),
      session_(executable_),
      tokens_(find_model_tensor(program_, "tokens", MKRT_DTYPE_I32, 2)),
      positions_(find_model_tensor(program_, "positions", MKRT_DTYPE_I32, 1)),
      active_(find_model_tensor(program_, "active", MKRT_DTYPE_I32, 1)),
      prompt_length_(find_model_tensor(program_, "prompt_length", MKRT_DTYPE_I32, 1)),
      stop_tokens_(find_model_tensor(program_, "stop_tokens", MKRT_DTYPE_I32, 1)),
      stop_count_(find_model_tensor(program_, "stop_count", MKRT_DTYPE_I32, 1)),
      logits_(find_model_tensor(program_, "logits", MKRT_DTYPE_F32, 2)),
      batch_(static_cast<uint32_t>(program_.tensor_info(tokens_).shape[0])),
      context_(static_cast<uint32_t>(program_.tensor_info(tokens_).shape[1])),
      vocabulary_(static_cast<uint32_t>(program_.tensor_info(logits_).shape[1])),
      stop_capacity_(static_cast<uint32_t>(program_.tensor_info(stop_tokens_).shape[0])) {
  execute_.entry = program_.find_entry("decode");
  execute_.queue_mode = options.queue == "static" ? MKRT_QUEUE_STATIC : MKRT_QUEUE_DYNAMIC;
  interrupt_.watch(&session_);
}

std::string Decoder::device_text() const {
  const std::string text = mesh_.device_info().name + ", " + worker_text();
  return warnings_.empty() ? text : text + " (" + warnings_ + ")";
}

std::string Decoder::short_device_text() const {
  if (warnings_.empty()) return worker_text();
  if (mesh_.device_info().kind != MKRT_DEVICE_HOST) return worker_text() + " (" + warnings_ + ")";
  // Who has a GPU asks why; who has none need not read the answer each time.
  return worker_text() + "; --device cuda says why not on a GPU";
}

std::string Decoder::worker_text() const {
  const DeviceInfo device = mesh_.device_info();
  std::string text = device_option(device) + ", " + std::to_string(device.worker_count) +
                     (device.worker_count == 1 ? " worker" : " workers");
  if (mesh_.rank_count() > 1) text += " on each of " + std::to_string(mesh_.rank_count()) + " ranks";
  return text;
}

void Decoder::write(uint32_t tensor, std::span<const int32_t> values, uint64_t offset) {
  for (uint32_t rank = 0; rank < mesh_.rank_count(); ++rank) session_.write<int32_t>(tensor, values, offset, rank);
}

void Decoder::start(std::span<const int32_t> prompt, std::span<const int32_t> stops) {
  if (prompt.empty()) throw Error("the prompt has no token, and the tokenizer puts none before it");
  if (prompt.size() >= context_) {
    throw Error("the prompt has " + std::to_string(prompt.size()) + " tokens, and the package's context of " +
                std::to_string(context_) + " must hold them and a new one: compile it with a larger --context");
  }
  for (const int32_t token : prompt) {
    if (token < 0 || static_cast<uint32_t>(token) >= vocabulary_) {
      throw Error("the prompt has token " + std::to_string(token) + ", and the model's vocabulary has " +
                  std::to_string(vocabulary_));
    }
  }
  if (stops.size() > stop_capacity_) {
    throw Error("the model has " + std::to_string(stops.size()) + " stop tokens, and the package has room for " +
                std::to_string(stop_capacity_));
  }
  std::vector<int32_t> of_first(batch_, 0);
  write(positions_, of_first);
  of_first[0] = 1;
  write(active_, of_first);
  of_first[0] = static_cast<int32_t>(prompt.size());
  write(prompt_length_, of_first);
  write(tokens_, prompt);
  if (!stops.empty()) write(stop_tokens_, stops);
  const auto count = static_cast<int32_t>(stops.size());
  write(stop_count_, {&count, 1});
}

void Decoder::start_all(uint32_t position) {
  write(positions_, std::vector<int32_t>(batch_, static_cast<int32_t>(position)));
  write(active_, std::vector<int32_t>(batch_, 1));
  write(prompt_length_, std::vector<int32_t>(batch_, 0));
  const int32_t none = 0;
  write(stop_count_, {&none, 1});
}

void Decoder::run(uint32_t steps, const Ticker& ticker) {
  if (steps == 0) return;
  if (interrupt_.requested()) throw Interrupted();
  execute_.step_count = steps;
  const Clock::time_point start = Clock::now();
  const uint64_t value = session_.execute(execute_);
  try {
    while (!session_.wait_for(value, kTick)) {
      // The signal may have come just before the execute was enqueued, when there was nothing to cancel.
      if (interrupt_.requested()) session_.cancel();
      if (ticker) ticker(std::chrono::duration<double>(Clock::now() - start).count());
    }
  } catch (const mkrt::Error& error) {
    if (error.status() == MKRT_ERROR_CANCELLED && interrupt_.requested()) throw Interrupted();
    throw;
  }
}

std::vector<std::vector<mkrt_trace_tile>> Decoder::trace(uint32_t position, uint32_t steps) {
  const uint32_t workers = mesh_.device_info().worker_count;
  const uint64_t tiles = program_.entry_info(execute_.entry).tile_count * steps;
  std::vector<std::vector<mkrt_trace_tile>> traces(workers);
  // Workers may run more than their share in dynamic mode; none runs more than all.
  for (uint64_t room = std::min(2 * (tiles / workers + 1), tiles + 1);; room = std::min(2 * room, tiles + 1)) {
    start_all(position);
    session_.trace(static_cast<uint32_t>(room));
    run(steps);
    bool complete = true;
    for (uint32_t worker = 0; worker < workers; ++worker) {
      traces[worker].resize(room);
      session_.read_trace(worker, traces[worker]);
      const auto end = std::find_if(traces[worker].begin(), traces[worker].end(),
                                    [](const mkrt_trace_tile& tile) { return tile.time[MKRT_TRACE_FETCHED] == 0; });
      complete = complete && end != traces[worker].end();
      traces[worker].erase(end, traces[worker].end());
    }
    session_.trace(0);
    if (complete) return traces;
  }
}

uint32_t Decoder::position() const { return static_cast<uint32_t>(session_.read_value<int32_t>(positions_)); }

bool Decoder::active() const { return session_.read_value<int32_t>(active_) != 0; }

std::vector<int32_t> Decoder::tokens(uint32_t begin, uint32_t end) const {
  std::vector<int32_t> out(end - begin);
  if (!out.empty()) session_.read<int32_t>(tokens_, out, begin);
  return out;
}

void Decoder::set_token(uint32_t place, int32_t token) { write(tokens_, {&token, 1}, place); }

void Decoder::read_logits(std::vector<float>& out) const {
  out.resize(vocabulary_);
  session_.read<float>(logits_, out);
}

}  // namespace mkrt::cli
