#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/tokenizer.hpp"
#include "cli/unicode.hpp"
#include "tool.hpp"

namespace mkrt::cli {
namespace {

using nlohmann::json;

// Where two logits lie closer than this, either token is right.
constexpr double kMargin = 0.02;
constexpr double kTolerance = 0.02;

// The one line that a run says beside the text, and that it is a short one.
bool names_host(const std::string& line) {
  return line.starts_with("mkrt: running on host, ") && line.find(" worker") != std::string::npos &&
         line.find('\n') + 1 == line.size() && line.size() < 80;
}

Outcome generate(std::vector<std::string> options) {
  std::vector<std::string> arguments = {"generate", novelist_package(), "--device", "host"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return run_tool(arguments);
}

json generate_json(std::vector<std::string> options) {
  options.push_back("--json");
  const Outcome outcome = generate(options);
  REQUIRE_MESSAGE(outcome.exit_code == 0, outcome.errors);
  return json::parse(outcome.output);
}

void check_refused(std::vector<std::string> options, const std::string& part) {
  const Outcome outcome = generate(options);
  CAPTURE(outcome.errors);
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.output.empty());
  CHECK(outcome.errors.find(part) != std::string::npos);
}

TEST_CASE("the novelist continues its prompts as its golden outputs say") {
  const json golden = json::parse(std::ifstream(MKRT_TEST_DATA "/novelist/golden.json"));
  const Tokenizer tokenizer = Tokenizer::read(MKRT_TEST_DATA "/novelist/tokenizer.json");
  for (const json& expected : golden["cases"]) {
    const std::string prompt = expected["prompt"];
    CAPTURE(prompt);
    const json got = generate_json({"--prompt", prompt, "--max-tokens", "96", "--logits", "96"});
    CHECK(got["prompt_ids"] == expected["prompt_ids"]);
    CHECK(got["tokens_per_second"] > 0);
    REQUIRE(got["ids"].size() == 96);
    REQUIRE(got["logits"].size() == 96);
    CHECK(got["text"] == to_text(tokenizer.decode(got["ids"].get<std::vector<int32_t>>())));
    size_t same = 0;
    for (; same < 96; ++same) {
      const json& step = expected["steps"][same];
      for (size_t k = 0; k < 5; ++k) {
        const double logit = got["logits"][same][step["top_ids"][k].get<size_t>()];
        CHECK(std::abs(logit - step["top_logits"][k].get<double>()) < kTolerance);
      }
      if (got["ids"][same] == expected["greedy_ids"][same]) continue;
      CHECK(step["top_logits"][0].get<double>() - step["top_logits"][1].get<double>() < kMargin);
      break;  // from here on the two texts are different ones
    }
    // Many steps in one execute choose what single steps choose.
    CHECK(generate_json({"--prompt", prompt, "--max-tokens", "96"})["ids"] == got["ids"]);
  }
}

TEST_CASE("the logits of a prompt agree with the golden ones") {
  const json golden = json::parse(std::ifstream(MKRT_TEST_DATA "/novelist/golden.json"))["full_logits"];
  std::string ids;
  for (const json& id : golden["prompt_ids"]) ids += (ids.empty() ? "" : ",") + id.dump();
  const json got = generate_json({"--prompt-ids", ids, "--prompt-logits", "--logits", "1", "--max-tokens", "1"});
  json logits = got["prompt_logits"];
  logits.push_back(got["logits"][0]);
  REQUIRE(logits.size() == golden["logits"].size());
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    REQUIRE(logits[i].size() == golden["logits"][i].size());
    for (size_t k = 0; k < logits[i].size(); ++k) {
      worst = std::max(worst, std::abs(logits[i][k].get<double>() - golden["logits"][i][k].get<double>()));
    }
  }
  CHECK(worst < kTolerance);
}

TEST_CASE("text streams in whole code points and is what --json reports") {
  for (const std::string temperature : {"0", "3"}) {  // 3: hardly a model any more, with many stray bytes
    const std::vector<std::string> options = {"--prompt",  "The captain",  "--temperature",
                                              temperature, "--max-tokens", "60"};
    const Outcome outcome = generate(options);
    REQUIRE(outcome.exit_code == 0);
    CHECK(names_host(outcome.errors));
    CHECK(find_invalid_utf8(outcome.output) == std::string::npos);
    CHECK(outcome.output == generate_json(options)["text"].get<std::string>() + "\n");
  }
  ToolProcess process({"generate", novelist_package(), "--device", "host", "--prompt", "x", "--max-tokens", "200",
                       "--temperature", "3"});
  int pieces = 0;
  for (std::string piece = process.read_some(); !piece.empty(); piece = process.read_some()) {
    CHECK(find_invalid_utf8(piece) == std::string::npos);
    ++pieces;
  }
  CHECK(pieces > 1);
  CHECK(generate({"--prompt", "The captain", "--max-tokens", "3", "--echo"}).output.starts_with("The captain"));
}

TEST_CASE("workers and queues do not change what is generated") {
  const std::vector<std::string> common = {"--prompt", "When the train", "--max-tokens", "16"};
  const json expected = generate_json(common)["ids"];
  for (const char* workers : {"1", "2", "5", "300"}) {
    for (const char* queue : {"dynamic", "static"}) {
      std::vector<std::string> options = common;
      for (const char* option : {"--workers", workers, "--queue", queue}) options.emplace_back(option);
      CHECK(generate_json(options)["ids"] == expected);
    }
  }
}

TEST_CASE("sampling follows its seed") {
  const auto sample = [](const char* seed, const char* top_k) {
    return generate_json({"--prompt", "Once", "--temperature", "1", "--top-k", top_k, "--top-p", "0.95", "--seed", seed,
                          "--max-tokens", "40"})["ids"];
  };
  CHECK(sample("1", "0") == sample("1", "0"));
  CHECK(sample("1", "0") != sample("2", "0"));
  CHECK(sample("1", "1") == generate_json({"--prompt", "Once", "--max-tokens", "40"})["ids"]);
}

TEST_CASE("generation ends where the context ends") {
  const TemporaryFolder folder;
  const std::string package = folder.path() + "/package";
  REQUIRE(run_tool({"compile", MKRT_TEST_DATA "/novelist", "-o", package, "--context", "64"}).exit_code == 0);
  const Outcome outcome =
      run_tool({"generate", package, "--device", "host", "--prompt-ids", "5,6,7", "--max-tokens", "100000", "--json"});
  REQUIRE_MESSAGE(outcome.exit_code == 0, outcome.errors);
  const json ids = json::parse(outcome.output)["ids"];
  CHECK((ids.size() == 61 || ids.back() == 1));  // unless the model itself ended it
  CHECK(generate_json({"--prompt-ids", "5", "--max-tokens", "0"})["ids"].empty());
}

TEST_CASE("prompts that cannot be continued are refused") {
  check_refused({"--prompt", ""}, "the prompt has no token");
  check_refused({"--prompt", "a\xFF"}, "not UTF-8: byte 1");
  check_refused({"--prompt-ids", "2048"}, "token 2048");
  check_refused({"--prompt-ids", "-1"}, "token -1");
  std::string long_prompt = "1";
  for (int i = 1; i < 1024; ++i) long_prompt += ",1";
  check_refused({"--prompt-ids", long_prompt}, "1024 tokens, and the package's context of 1024");
  check_refused({"--prompt", "a", "--tokenizer", "/nowhere/tokenizer.json"}, "/nowhere/tokenizer.json");
}

TEST_CASE("token numbers need no tokenizer") {
  const TemporaryFolder folder;
  const std::string package = folder.path() + "/package";
  std::filesystem::copy(novelist_package(), package, std::filesystem::copy_options::recursive);
  std::filesystem::remove(package + "/tokenizer.json");
  const Outcome with_json = run_tool({"generate", package, "--prompt-ids", "5,6", "--max-tokens", "4", "--json"});
  REQUIRE_MESSAGE(with_json.exit_code == 0, with_json.errors);
  const json got = json::parse(with_json.output);
  CHECK(got["ids"].size() == 4);
  CHECK(got["text"].is_null());
  std::string numbers;
  for (const json& id : got["ids"]) numbers += (numbers.empty() ? "" : " ") + id.dump();
  CHECK(run_tool({"generate", package, "--prompt-ids", "5,6", "--max-tokens", "4"}).output == numbers + "\n");
  const Outcome with_text = run_tool({"generate", package, "--prompt", "a"});
  CHECK(with_text.exit_code == 1);
  CHECK(with_text.errors.find("tokenizer.json does not exist") != std::string::npos);
}

TEST_CASE("a tokenizer that cannot be read is said when the model is compiled, and text prompts alone need it") {
  const TemporaryFolder folder;
  const std::string model = folder.path() + "/model", package = folder.path() + "/package";
  const std::string tokenizer = model + "/tokenizer.json";
  std::filesystem::copy(MKRT_TEST_DATA "/novelist", model);
  std::filesystem::permissions(tokenizer, std::filesystem::perms::owner_all);
  json unsupported = json::parse(std::ifstream(tokenizer));
  unsupported["model"]["byte_fallback"] = true;
  const std::pair<std::string, std::string> cases[] = {
      {"{\"model\": {\n", ": line 2, byte 13 (/model/): is not JSON: the text ends too early"},
      {unsupported.dump(), ": /model/byte_fallback is true, which mkrt does not support"},
      {R"({"model": {}, "model": {}})", ": the root: has the member \"model\" twice"},
      {"", ": line 1, byte 1: is not JSON: the text ends too early"}};
  for (const auto& [content, why] : cases) {
    CAPTURE(why);
    std::ofstream(tokenizer, std::ios::trunc) << content;
    const Outcome compiled = run_tool({"compile", model, "-o", package});
    CHECK(compiled.exit_code == 0);
    CHECK(compiled.errors ==
          "mkrt: " + tokenizer + why + "; generate takes --prompt-ids or --tokenizer for this package, no --prompt\n");
    const Outcome with_text = run_tool({"generate", package, "--prompt", "a"});
    CHECK(with_text.exit_code == 1);
    CHECK(with_text.output.empty());
    CHECK(with_text.errors == "mkrt: " + package + "/tokenizer.json" + why + "\n");
    const Outcome with_ids = run_tool({"generate", package, "--prompt-ids", "5", "--max-tokens", "2", "--json"});
    CHECK(with_ids.exit_code == 0);
    CHECK(with_ids.errors == "mkrt: " + package + "/tokenizer.json" + why + "; tokens stay numbers\n");
    CHECK(json::parse(with_ids.output)["text"].is_null());
  }
  std::filesystem::remove(tokenizer);
  const Outcome without = run_tool({"compile", model, "-o", package});
  CHECK(without.exit_code == 0);
  CHECK(without.errors.find("tokenizer.json does not exist; generate takes --prompt-ids") != std::string::npos);
}

TEST_CASE("a tokenizer that cannot be copied ends compile before it writes anything") {
  const TemporaryFolder folder;
  const std::string model = folder.path() + "/model", package = folder.path() + "/package";
  const std::string tokenizer = model + "/tokenizer.json";
  std::filesystem::copy(MKRT_TEST_DATA "/novelist", model);
  const auto check_refused = [&](const std::string& why) {
    const Outcome outcome = run_tool({"compile", model, "-o", package});
    CHECK(outcome.exit_code == 1);
    CHECK(outcome.errors == "mkrt: " + tokenizer + why + "\n");
    CHECK_FALSE(std::filesystem::exists(package));
  };
  std::filesystem::remove(tokenizer);
  std::filesystem::create_directory(tokenizer);
  check_refused(": cannot be read: Is a directory");
  std::filesystem::remove(tokenizer);
  REQUIRE(mkfifo(tokenizer.c_str(), 0600) == 0);
  check_refused(": is not a regular file");
}

TEST_CASE("a package that is not there is named, not the tokenizer that would be in it") {
  const TemporaryFolder folder;
  for (const std::string& missing : {folder.path() + "/missing", folder.path()}) {
    for (const std::vector<std::string>& prompt : {std::vector<std::string>{"--prompt", "a"}, {"--prompt-ids", "1"}}) {
      const Outcome outcome = run_tool({"generate", missing, prompt[0], prompt[1]});
      CHECK(outcome.exit_code == 1);
      CHECK(outcome.errors == "mkrt: " + missing + (missing == folder.path() ? "/program.json" : "") +
                                  ": cannot be opened: No such file or directory\n");
    }
  }
}

TEST_CASE("a run says which device it took, and where it was not the one that a user may expect, why") {
  const json on_host = generate_json({"--prompt", "x", "--max-tokens", "1"});
  CHECK(on_host["device"].get<std::string>().find(", host, ") != std::string::npos);
  // A reason would stand in brackets at the end; processors have brackets in their names.
  CHECK(!on_host["device"].get<std::string>().ends_with(')'));

  const json devices = json::parse(run_tool({"devices", "--json"}).output);
  const TemporaryFolder folder;
  const std::string package = folder.path() + "/package";
  REQUIRE(run_tool({"compile", MKRT_TEST_DATA "/novelist", "-o", package, "--no-images"}).exit_code == 0);
  const Outcome by_default = run_tool({"generate", package, "--prompt", "x", "--max-tokens", "1"});
  REQUIRE_MESSAGE(by_default.exit_code == 0, by_default.errors);
  CHECK(names_host(by_default.errors));
  CHECK(by_default.errors.ends_with("; --device cuda says why not on a GPU\n"));
  const Outcome by_default_json = run_tool({"generate", package, "--prompt", "x", "--max-tokens", "1", "--json"});
  CHECK(by_default_json.errors.empty());
  CHECK(json::parse(by_default_json.output)["device"].get<std::string>().find(
            devices.size() > 1 ? "no image" : "the default device is the host: there is no CUDA") != std::string::npos);
  // Asked for by name, a GPU is never replaced.
  const Outcome by_name = run_tool({"generate", package, "--prompt", "x", "--device", "cuda"});
  CHECK(by_name.exit_code == 1);
  CHECK(by_name.output.empty());
}

TEST_CASE("an interrupt ends generation between two code points") {
  ToolProcess process(
      {"generate", novelist_package(), "--device", "host", "--workers", "1", "--prompt", "x", "--max-tokens", "1000"});
  REQUIRE(!process.read_some().empty());
  process.send_signal(SIGINT);
  const Outcome outcome = process.finish();
  CHECK(outcome.exit_code == 130);
  REQUIRE(outcome.errors.ends_with("mkrt: interrupted\n"));
  CHECK(names_host(outcome.errors.substr(0, outcome.errors.find('\n') + 1)));
  CHECK(outcome.output.ends_with("\n"));
  CHECK(find_invalid_utf8(outcome.output) == std::string::npos);
}

TEST_CASE("a reader that leaves ends generation in silence") {
  ToolProcess process({"generate", novelist_package(), "--device", "host", "--prompt", "x", "--max-tokens", "1000"});
  REQUIRE(!process.read_some().empty());
  process.close_output();
  const Outcome outcome = process.finish();
  CHECK(outcome.exit_code == 1);
  CHECK(names_host(outcome.errors));
}

}  // namespace
}  // namespace mkrt::cli
