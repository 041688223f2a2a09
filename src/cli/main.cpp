// The mkrt tool: reads the command line, runs one command, and turns what it throws into a sentence and an exit code.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"

namespace mkrt::cli {
namespace {

// Exit codes. Those of commands that ran are 0 and kFailed.
constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kInterrupted = 130;  // what shells report for a program that SIGINT ended

// One line whatever the sentence quotes: names of files and arguments may hold line breaks.
void complain(std::string sentence) {
  std::replace_if(
      sentence.begin(), sentence.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  sentence.erase(sentence.find_last_not_of(' ') + 1);
  std::fprintf(stderr, "mkrt: %s\n", sentence.c_str());
}

// What is wrong with a command line. The parser asks for what is missing before it looks at words that it does not
// know; a person who mistyped one wants to hear of that word.
std::string usage_failure(const CLI::App& app, const CLI::ParseError& error) {
  const bool may_be_mistyped = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr ||
                               dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const CLI::App* command = app.get_subcommands().empty() ? nullptr : app.get_subcommands().front();
  std::vector<std::string> unknown = app.remaining();
  const bool before_command = !unknown.empty();
  if (unknown.empty() && command != nullptr) unknown = command->remaining(true);
  const std::string help = command == nullptr ? "; see mkrt --help" : "; see mkrt " + command->get_name() + " --help";
  if (!may_be_mistyped || unknown.empty()) return error.what() + help;
  const bool is_option = unknown.front().starts_with('-');
  const std::string word = "\"" + unknown.front() + "\"";
  if (before_command) return "there is no " + std::string(is_option ? "option " : "command ") + word + help;
  return command->get_name() + " does not take " + (is_option ? "the option " : "") + word + help;
}

std::string version_text() {
  const uint32_t version = mkrt_version();
  return "mkrt " + std::to_string(version / 1'000'000) + "." + std::to_string(version / 1000 % 1000) + "." +
         std::to_string(version % 1000);
}

// Everything that the command line can say.
struct Arguments {
  CompileOptions compile;
  InspectOptions inspect;
  GenerateOptions generate;
  BenchOptions bench;
  DevicesOptions devices;
};

// For options that name a file or a folder.
std::string check_path(const std::string& path) { return path.empty() ? "the path is empty" : ""; }

void add_package(CLI::App& command, std::string& package) {
  command.add_option("PACKAGE", package, "Folder that mkrt compile wrote, or its program.json")
      ->required()
      ->check(check_path);
}

void add_run_options(CLI::App& command, RunOptions& options) {
  const auto check_device = [](std::string& device) -> std::string {
    try {
      describe_ranks({device, 0, ""}, 1);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  command.add_option("--device", options.device, "host, cuda or cuda:N; left out: cuda:0 if there is one, else host")
      ->check(CLI::Validator(check_device, "DEVICE"));
  command.add_option("--workers", options.workers, "Threads or multiprocessors to use on each rank; 0: all")
      ->check(CLI::Range(0, MKRT_MAX_HOST_WORKERS))
      ->capture_default_str();
  command.add_option("--queue", options.queue, "How tiles are handed out: dynamic or static; results are the same")
      ->check(CLI::IsMember({"dynamic", "static"}))
      ->capture_default_str();
}

CLI::App* add_compile(CLI::App& app, CompileOptions& options) {
  CLI::App* command = app.add_subcommand("compile", "Turn a Hugging Face model folder into a package");
  command->add_option("MODEL", options.model, "Folder with config.json and safetensors files")
      ->required()
      ->check(check_path);
  command->add_option("-o,--output", options.package, "Folder for the package")->required()->check(check_path);
  command->add_option("--batch", options.batch, "Sequences that decode together")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  command->add_option("--context", options.context, "Positions of each sequence; 0: the model's, at most 4096")
      ->capture_default_str();
  command->add_option("--tile-rows", options.tile_rows, "Rows of a matrix tile, a multiple of 16; 0: chosen");
  command->add_option("--splits", options.splits, "Tiles that share the positions of one head; 0: chosen");
  command->add_option("--ranks", options.ranks, "Devices that share the model, each with a part of every matrix")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  CLI::Option* images = command->add_option(
      "--images", options.images, "Folder with mkrt_llm.TARGET.cubin files; left out: those that came with this tool");
  images->check(check_path);
  command->add_flag("--no-images", options.no_images, "Put no kernels into the package: for the host device only")
      ->excludes(images);
  return command;
}

CLI::App* add_inspect(CLI::App& app, InspectOptions& options) {
  CLI::App* command = app.add_subcommand("inspect", "Show a package's entries, records, tensors and memory");
  add_package(*command, options.package);
  command->add_flag("--json", options.json, "Print JSON");
  return command;
}

// "1,2,3"; every piece between commas must be a number.
std::vector<int32_t> parse_token_numbers(const std::string& text) {
  std::vector<int32_t> numbers;
  const char* at = text.data();
  const char* end = at + text.size();
  for (;;) {
    int32_t number = 0;
    const auto [after, error] = std::from_chars(at, end, number);
    if (error != std::errc{} || (after != end && *after != ',')) {
      throw CLI::ValidationError("--prompt-ids", "wants numbers with commas between them, such as 1,2,3");
    }
    numbers.push_back(number);
    if (after == end) return numbers;
    at = after + 1;
  }
}

CLI::App* add_generate(CLI::App& app, GenerateOptions& options) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text");
  add_package(*command, options.package);
  CLI::Option_group* prompt = command->add_option_group("Prompt", "What to continue; one of these");
  prompt->add_option("--prompt", options.prompt, "Text");
  prompt->add_option_function<std::string>(
      "--prompt-ids", [&options](const std::string& text) { options.prompt_ids = parse_token_numbers(text); },
      "Token numbers, such as 1,2,3; needs no tokenizer");
  prompt->require_option(1);
  command->add_option("--tokenizer", options.tokenizer, "A tokenizer.json instead of the package's")->check(check_path);
  command->add_option("--max-tokens", options.max_tokens, "Most new tokens")->capture_default_str();
  command->add_option("--temperature", options.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 1e6))
      ->check([](const std::string& text) {
        return std::string(std::isnan(std::strtod(text.c_str(), nullptr)) ? "is no number" : "");
      })
      ->capture_default_str();
  command->add_option("--top-k", options.sampler.top_k, "Choose among the k likeliest tokens; 0: all")
      ->capture_default_str();
  command
      ->add_option("--top-p", options.sampler.top_p, "Choose among the likeliest tokens of this probability together")
      ->check(CLI::Range(1e-9, 1.0))
      ->capture_default_str();
  command->add_option("--seed", options.sampler.seed, "Of the choice; the same seed gives the same text")
      ->capture_default_str();
  add_run_options(*command, options.run);
  command->add_flag("--echo", options.echo, "Print the prompt before its continuation");
  command->add_flag("--json", options.json, "Print one JSON object when all is done");
  command->add_option("--logits", options.logits, "With --json: the logits that the first N new tokens were chosen by");
  command->add_flag("--prompt-logits", options.prompt_logits,
                    "With --json: the logits after each token of the prompt but the last");
  return command;
}

CLI::App* add_bench(CLI::App& app, BenchOptions& options) {
  CLI::App* command =
      app.add_subcommand("bench", "Measure decoding against this machine's memory, in rounds; figures are medians");
  add_package(*command, options.package);
  add_run_options(*command, options.run);
  command->add_option("--json", options.json, "Write the report as JSON to this file; -: standard output")
      ->check(check_path);
  CLI::Option* context =
      command->add_option("--context", options.position, "Position to start at: so many tokens count as read already")
          ->capture_default_str();
  command->add_option("--around", options.around, "Position in the middle of the measured ones, instead of --context")
      ->excludes(context);
  command->add_option("--tokens", options.tokens, "Steps to measure, one an execute and all in one")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--repeats", options.repeats,
                   "Most rounds of read limit, a part of the single steps, and one execute of all; fewer after 30 s")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--warm-up", options.warm_up, "Steps before the measurement")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command->add_flag("--records", options.records,
                    "On a GPU: show where the time of each record goes; JSON always has it");
  return command;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("The megakernel runtime's tool", "mkrt");
  app.set_version_flag("--version", version_text);
  app.require_subcommand(1);
  CLI::App* compile_command = add_compile(app, arguments.compile);
  CLI::App* inspect_command = add_inspect(app, arguments.inspect);
  CLI::App* generate_command = add_generate(app, arguments.generate);
  CLI::App* bench_command = add_bench(app, arguments.bench);
  CLI::App* devices_command = app.add_subcommand("devices", "List what programs can run on");
  devices_command->add_flag("--json", arguments.devices.json, "Print JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    std::ostringstream text, none;
    app.exit(help_or_version, text, none);
    print(text.str());
    return 0;
  } catch (const CLI::ParseError& error) {
    complain(usage_failure(app, error));
    return kUsage;
  }
  if (*compile_command) return compile(arguments.compile);
  if (*inspect_command) return inspect(arguments.inspect);
  if (*generate_command) return generate(arguments.generate);
  if (*bench_command) return bench(arguments.bench);
  return *devices_command ? devices(arguments.devices) : kUsage;
}

}  // namespace
}  // namespace mkrt::cli

int main(int argc, char** argv) {
  using namespace mkrt::cli;
  try {
    prepare_standard_streams();
    return run(argc, argv);
  } catch (const OutputClosed&) {
    return kFailed;
  } catch (const Interrupted& interrupted) {
    complain(interrupted.what());
    return kInterrupted;
  } catch (const std::bad_alloc&) {
    complain("memory is exhausted");
  } catch (const std::exception& error) {  // Error, mkrt::Error, base::Failure: each with its sentence
    complain(error.what());
  }
  return kFailed;
}
