#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/tokenizer.hpp"
#include "cli/unicode.hpp"

namespace mkrt::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Text should arrive in a flow: one execute takes as many steps as fit into this time. An execute costs microseconds
// to start, so longer ones would gain nothing that can be measured.
constexpr double kChunkSeconds = 0.05;

// How many steps the next execute should have, from what the last one took.
class ChunkSize {
 public:
  uint32_t next() const { return steps_; }
  void took(uint32_t steps, double seconds) {
    const double fitting = kChunkSeconds * steps / std::max(seconds, 1e-9);
    // At most doubled: one lucky measurement must not make the user wait.
    steps_ = static_cast<uint32_t>(std::clamp(fitting, 1.0, 2.0 * steps_));
  }

 private:
  uint32_t steps_ = 1;
};

// What was generated so far, and what is shown of it while it grows.
class Text {
 public:
  Text(const std::optional<Tokenizer>& tokenizer, bool show) : tokenizer_(tokenizer), show_(show) {}

  void add(std::span<const int32_t> ids) {
    std::string shown;
    for (const int32_t id : ids) {
      ids_.push_back(id);
      if (tokenizer_) {
        shown += stream_.push(tokenizer_->bytes(id));
      } else {
        shown += (ids_.size() > 1 ? " " : "") + std::to_string(id);
      }
    }
    append(shown);
  }
  void finish() { append(stream_.finish()); }

  const std::vector<int32_t>& ids() const { return ids_; }
  const std::string& text() const { return text_; }

 private:
  void append(const std::string& shown) {
    text_ += shown;
    if (show_) print(shown);
  }

  const std::optional<Tokenizer>& tokenizer_;
  bool show_;
  Utf8Stream stream_;
  std::vector<int32_t> ids_;
  std::string text_;
};

struct Report {
  std::vector<std::vector<float>> prompt_logits, logits;
  double seconds = 0;  // that the new tokens took
};

// Throws where the package cannot be loaded. The decoder would say so too, but comes after the prompt, which needs the
// tokenizer; where there is no package, that is not what is missing. Takes milliseconds: weights are not read.
void require_package(const std::string& package) { const Program loaded(Runtime(), package); }

// The tokenizer that the user names, or the package's. Where the prompt comes as token numbers, nobody needs one: then
// a package's tokenizer that mkrt cannot read is said and left out.
std::optional<Tokenizer> find_tokenizer(const GenerateOptions& options) {
  if (!options.tokenizer.empty()) return Tokenizer::read(options.tokenizer);
  std::filesystem::path folder = options.package;
  if (!std::filesystem::is_directory(folder)) folder = folder.parent_path();
  const std::string path = (folder / "tokenizer.json").string();
  if (!std::filesystem::exists(path)) {
    if (!options.prompt) return std::nullopt;
    throw Error(path + " does not exist: say --tokenizer FILE, or give the prompt's tokens with --prompt-ids");
  }
  try {
    return Tokenizer::read(path);
  } catch (const Error& error) {
    if (options.prompt) throw;
    tell(std::string(error.what()) + "; tokens stay numbers");
    return std::nullopt;
  }
}

// Steps over all of the prompt but its last token, whose step makes the first new one.
void read_prompt(Decoder& decoder, uint32_t steps, bool with_logits, Report& report) {
  Progress progress("reading the prompt");
  ChunkSize chunk;
  for (uint32_t done = 0; done < steps;) {
    const uint32_t count = with_logits ? 1 : std::min(chunk.next(), steps - done);
    const Clock::time_point start = Clock::now();
    decoder.run(count);
    chunk.took(count, std::chrono::duration<double>(Clock::now() - start).count());
    if (with_logits) decoder.read_logits(report.prompt_logits.emplace_back());
    progress.update(done += count, steps);
  }
}

// Makes up to `most` tokens after a prompt of `prompt_size`, and stops at one of `stops`.
void make_tokens(Decoder& decoder, const GenerateOptions& options, uint32_t prompt_size, uint32_t most,
                 std::span<const int32_t> stops, Text& text, Report& report) {
  Sampler sampler(options.sampler);
  const bool sampled = options.temperature > 0;
  std::vector<float> logits;
  ChunkSize chunk;
  Progress progress("generating");
  bool going = true;
  for (uint32_t made = 0; going && made < most;) {
    const bool report_logits = made < options.logits;
    const uint32_t count = sampled || report_logits ? 1 : std::min(chunk.next(), most - made);
    const Clock::time_point start = Clock::now();
    decoder.run(count);
    if (sampled || report_logits) decoder.read_logits(logits);
    if (report_logits) report.logits.push_back(logits);
    if (sampled) decoder.set_token(prompt_size + made, sampler.sample(logits));
    // Where a greedy choice ended the sequence, fewer tokens came than were asked for.
    const std::vector<int32_t> made_now = decoder.tokens(prompt_size + made, decoder.position() + 1);
    made += static_cast<uint32_t>(made_now.size());
    going = !made_now.empty() && std::find(stops.begin(), stops.end(), made_now.back()) == stops.end();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    report.seconds += seconds;
    chunk.took(count, seconds);
    text.add(made_now);
    if (options.json) progress.update(made, most);  // otherwise the text itself shows it
  }
}

nlohmann::ordered_json to_json(const Decoder& decoder, const std::vector<int32_t>& prompt, const Text& text,
                               bool has_text, const GenerateOptions& options, const Report& report) {
  nlohmann::ordered_json out;
  out["device"] = decoder.device_text();
  out["prompt_ids"] = prompt;
  out["ids"] = text.ids();
  out["text"] = has_text ? nlohmann::ordered_json(text.text()) : nullptr;
  out["tokens_per_second"] = report.seconds > 0 ? static_cast<double>(text.ids().size()) / report.seconds : 0.0;
  if (options.logits > 0) out["logits"] = report.logits;
  if (options.prompt_logits) out["prompt_logits"] = report.prompt_logits;
  return out;
}

}  // namespace

int generate(const GenerateOptions& options) {
  Interrupt interrupt;
  require_package(options.package);
  const std::optional<Tokenizer> tokenizer = find_tokenizer(options);
  const std::vector<int32_t> prompt = options.prompt ? tokenizer->encode(*options.prompt) : options.prompt_ids;
  Decoder decoder(options.package, options.run, interrupt);

  const std::vector<int32_t> stops = metadata_tokens(decoder.program(), "eos_tokens");
  // A sampled token need not be the greedy choice that the schedule would stop at.
  decoder.start(prompt, options.temperature > 0 ? std::vector<int32_t>() : stops);
  const auto prompt_size = static_cast<uint32_t>(prompt.size());
  const uint32_t most = std::min(options.max_tokens, decoder.context() - prompt_size);

  if (!options.json) tell("running on " + decoder.short_device_text());

  Report report;
  Text text(tokenizer, !options.json);
  if (options.echo && options.prompt && !options.json) print(*options.prompt);
  try {
    read_prompt(decoder, prompt_size - 1, options.prompt_logits, report);
    make_tokens(decoder, options, prompt_size, most, stops, text, report);
  } catch (const Interrupted&) {
    if (!options.json) {
      text.finish();
      print("\n");
    }
    throw;
  }
  text.finish();
  print(options.json ? to_json(decoder, prompt, text, tokenizer.has_value(), options, report).dump() + "\n" : "\n");
  return 0;
}

}  // namespace mkrt::cli
