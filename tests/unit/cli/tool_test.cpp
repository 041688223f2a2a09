#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tool.hpp"

namespace mkrt::cli {
namespace {

using nlohmann::json;

// Failures say one sentence, on standard error only.
void check_failure(const std::vector<std::string>& arguments, int exit_code, const std::string& part) {
  const Outcome outcome = run_tool(arguments);
  CAPTURE(arguments);
  CAPTURE(outcome.errors);
  CHECK(outcome.exit_code == exit_code);
  CHECK(outcome.output.empty());
  CHECK(outcome.errors.starts_with("mkrt: "));
  CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
  CHECK(outcome.errors.find(part) != std::string::npos);
}

TEST_CASE("a command line that cannot be understood ends with code 2") {
  check_failure({}, 2, "subcommand");
  check_failure({"dance"}, 2, "there is no command \"dance\"; see mkrt --help");
  check_failure({"dance", "devices"}, 2, "there is no command \"dance\"");
  check_failure({"dance\nfloor"}, 2, "\"dance floor\"");
  check_failure({"--json"}, 2, "there is no option \"--json\"; see mkrt --help");
  check_failure({"--json", "devices"}, 2, "there is no option \"--json\"; see mkrt devices --help");
  check_failure({"generate", "p", "--promt", "a"}, 2, "mkrt: generate does not take the option \"--promt\"");
  check_failure({"inspect", "p", "q"}, 2, "mkrt: inspect does not take \"q\"; see mkrt inspect --help");
  check_failure({"generate"}, 2, "PACKAGE");
  check_failure({"generate", "p"}, 2, "[--prompt,--prompt-ids]");
  check_failure({"generate", "p", "--prompt", "a", "--prompt-ids", "1"}, 2, "[--prompt,--prompt-ids]");
  check_failure({"generate", "p", "--prompt-ids", "1,x"}, 2, "--prompt-ids");
  check_failure({"generate", "p", "--prompt-ids", "1,99999999999"}, 2, "--prompt-ids");
  check_failure({"generate", "p", "--prompt", "a", "--queue", "random"}, 2, "--queue");
  check_failure({"generate", "p", "--prompt", "a", "--device", "tpu"}, 2, "there is no device \"tpu\"");
  check_failure({"generate", "p", "--prompt", "a", "--device", "cuda:-1"}, 2, "--device");
  check_failure({"generate", "p", "--prompt", "a", "--workers", "-1"}, 2, "--workers");
  check_failure({"generate", "p", "--prompt", "a", "--workers", "4096"}, 2, "0 to 4095");
  check_failure({"generate", "p", "--prompt", "a", "--temperature", "-0.5"}, 2, "--temperature");
  check_failure({"generate", "p", "--prompt", "a", "--top-p", "0"}, 2, "--top-p");
  check_failure({"generate", "p", "--prompt", "a", "--max-tokens", "-1"}, 2, "--max-tokens");
  check_failure({"compile", "m"}, 2, "--output");
  check_failure({"compile", "m", "-o", "p", "--batch", "17"}, 2, "--batch");
  check_failure({"compile", "m", "-o", "p", "--ranks", "65"}, 2, "--ranks");
  check_failure({"bench", "p", "--tokens", "0"}, 2, "--tokens");
  check_failure({"inspect", "p", "--colour"}, 2, "--colour");
  check_failure({"compile", "", "-o", "p"}, 2, "mkrt: MODEL: the path is empty; see mkrt compile --help");
  check_failure({"compile", "m", "-o", ""}, 2, "mkrt: --output: the path is empty");
  check_failure({"compile", "m", "-o", "p", "--images", ""}, 2, "mkrt: --images: the path is empty");
  check_failure({"inspect", ""}, 2, "mkrt: PACKAGE: the path is empty");
  check_failure({"generate", "", "--prompt", "a"}, 2, "mkrt: PACKAGE: the path is empty");
  check_failure({"generate", "p", "--prompt", "a", "--tokenizer", ""}, 2, "mkrt: --tokenizer: the path is empty");
  check_failure({"bench", ""}, 2, "mkrt: PACKAGE: the path is empty");
  check_failure({"bench", "p", "--json", ""}, 2, "mkrt: --json: the path is empty");
}

TEST_CASE("help and version come on standard output") {
  for (const char* option : {"--help", "--version"}) {
    const Outcome outcome = run_tool({option});
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.output.find("mkrt") != std::string::npos);
    CHECK(outcome.errors.empty());
  }
  CHECK(run_tool({"generate", "--help"}).output.find("--prompt-ids") != std::string::npos);
}

TEST_CASE("a command that fails ends with code 1") {
  check_failure({"inspect", "/nowhere/package"}, 1, "/nowhere/package");
  check_failure({"generate", "/nowhere/package", "--prompt-ids", "1"}, 1, "/nowhere/package");
  check_failure({"bench", "/nowhere/package"}, 1, "/nowhere/package");
  const TemporaryFolder folder;
  check_failure({"compile", "/nowhere/model", "-o", folder.path() + "/package"}, 1, "/nowhere/model");
  check_failure({"inspect", folder.path()}, 1, "program.json");
}

TEST_CASE("compile puts kernel images into the package: those of a folder, or none") {
  const TemporaryFolder folder;
  const std::string package = folder.path() + "/package";
  const std::string images = folder.path() + "/images";
  std::filesystem::create_directory(images);
  const auto compile_with = [&](std::vector<std::string> options) {
    std::vector<std::string> arguments = {"compile", MKRT_TEST_DATA "/novelist", "-o", package};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_tool(arguments);
    REQUIRE_MESSAGE(outcome.exit_code == 0, outcome.errors);
    return std::pair(outcome.output, json::parse(std::ifstream(package + "/program.json"))["images"]);
  };
  check_failure({"compile", MKRT_TEST_DATA "/novelist", "-o", package, "--images", images}, 1, "mkrt_llm.TARGET.cubin");
  check_failure({"compile", "m", "-o", "p", "--images", "i", "--no-images"}, 2, "--no-images");
  check_failure({"compile", "m", "-o", "p", "--images", folder.path() + "/nowhere"}, 1, "nowhere");
  for (const char* name :
       {"mkrt_llm.sm_90a.cubin", "mkrt_llm.sm_80.cubin", "mkrt_llm.cubin", "mkrt_llm..cubin", "notes"}) {
    std::ofstream(images + "/" + name) << name;
  }
  const auto [said, listed] = compile_with({"--images", images});
  CHECK(said.find("kernels for sm_80, sm_90a\n") != std::string::npos);
  CHECK(listed == json::parse(R"([{"target": "sm_80", "file": "mkrt_llm.sm_80.cubin"},
                                  {"target": "sm_90a", "file": "mkrt_llm.sm_90a.cubin"}])"));
  std::string content;
  std::ifstream(package + "/mkrt_llm.sm_90a.cubin") >> content;
  CHECK(content == "mkrt_llm.sm_90a.cubin");
  const auto [said_without, listed_without] = compile_with({"--no-images"});
  CHECK(said_without.find("host device only") != std::string::npos);
  CHECK(listed_without.empty());
  CHECK(compile_with({}).second.size() == MKRT_BUILT_IMAGES);
}

TEST_CASE("devices lists the host last, with what a program needs to know") {
  const Outcome outcome = run_tool({"devices", "--json"});
  REQUIRE(outcome.exit_code == 0);
  const json list = json::parse(outcome.output);
  REQUIRE(!list.empty());
  for (const json& device : list) {
    CHECK(device["workers"] > 0);
    CHECK(device["memory_bytes"] > 0);
    CHECK(device["name"].is_string());
  }
  CHECK(list.back()["device"] == "host");
  CHECK(run_tool({"devices"}).output.find("host") != std::string::npos);
}

TEST_CASE("inspect describes entries, records, tensors and memory") {
  const Outcome outcome = run_tool({"inspect", novelist_package(), "--json"});
  REQUIRE_MESSAGE(outcome.exit_code == 0, outcome.errors);
  const json report = json::parse(outcome.output);
  CHECK(report["isa"] == "mkrt.llm");
  CHECK(report["isa_fingerprint"].get<std::string>().size() == 16);
  CHECK(report["ranks"] == 1);
  CHECK(report["metadata"]["layers"] == "4");
  uint64_t weights = 0;
  bool tokens = false;
  for (const json& tensor : report["tensors"]) {
    if (tensor["kind"] == "weight") weights += tensor["size_bytes"].get<uint64_t>();
    if (tensor["name"] != "tokens") continue;
    tokens = true;
    CHECK(tensor["dtype"] == "i32");
    CHECK(tensor["shape"] == json({1, 1024}));
    CHECK(tensor["size_bytes"] == 4096);
  }
  CHECK(tokens);
  // Tensors begin at aligned addresses, so together they need a little more than their sizes.
  CHECK(report["weight_bytes"] >= weights);
  CHECK(report["weight_bytes"] < weights + 4096 * report["tensors"].size());
  CHECK(report["session_bytes"] > 0);
  REQUIRE(report["entries"].size() == 1);
  const json& entry = report["entries"][0];
  CHECK(entry["name"] == "decode");
  uint64_t tiles = 0;
  for (const json& record : entry["records"]) {
    uint64_t product = 1;
    for (const json& dimension : record["grid"]) product *= dimension.get<uint64_t>();
    CHECK(record["tiles"] == product);
    tiles += product;
  }
  CHECK(entry["tiles"] == tiles);

  const Outcome text = run_tool({"inspect", novelist_package()});
  CHECK(text.exit_code == 0);
  for (const char* part : {"memory a rank needs", "entry decode", "tokens", "linear_swiglu"}) {
    CHECK(text.output.find(part) != std::string::npos);
  }
}

TEST_CASE("bench reports rates, bytes and the machine's limit of the same run") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/bench.json";
  const Outcome outcome = run_tool({"bench", novelist_package(), "--device", "host", "--tokens", "6", "--repeats", "3",
                                    "--context", "100", "--json", file});
  REQUIRE_MESSAGE(outcome.exit_code == 0, outcome.errors);
  CHECK(outcome.output.find("% of the read limit") != std::string::npos);
  const json report = json::parse(std::ifstream(file));
  const double limit = report["read_limit_bytes_per_second"];
  CHECK(limit > 0);
  const json inspected = json::parse(run_tool({"inspect", novelist_package(), "--json"}).output);
  CHECK(report["weight_bytes_read_per_step"] == inspected["weight_bytes"]);  // tied embeddings: all of it
  // 4 layers, 2 key-value heads of 64, keys and values in two bytes, at the middle of positions 100 to 105.
  CHECK(report["cache_bytes_read_per_step"] == 4 * 2 * 64 * 2 * 2 * 102.5);
  for (const char* mode : {"one_step_per_execute", "many_steps_per_execute"}) {
    const json& figures = report[mode];
    // No round begins that would last too long, so a slow machine has fewer of the three; two steps are in each.
    std::vector<double> shares = figures["share_of_read_limit_by_round"];
    REQUIRE(!shares.empty());
    CHECK(shares.size() <= 3);
    CHECK(figures["executes"] == shares.size() * (figures["steps_per_execute"] == 1 ? 2 : 1));
    CHECK(figures["tokens_per_second"] > 0);
    CHECK(figures["ms_per_token"]["p50"] <= figures["ms_per_token"]["p95"]);
    const double bytes = report["bytes_read_per_token"];
    const double rate = bytes / figures["ms_per_token"]["p50"].get<double>() * 1e3;
    CHECK(figures["bytes_read_per_second"].get<double>() == doctest::Approx(rate));
    CHECK(figures["tokens_per_second"].get<double>() ==
          doctest::Approx(1e3 / figures["ms_per_token"]["p50"].get<double>()));
    CHECK(figures["ms_per_token"]["mean"] > 0);
    std::sort(shares.begin(), shares.end());
    CHECK(shares.front() > 0);
    if (shares.size() == 3) CHECK(figures["share_of_read_limit"] == shares[1]);
  }
  // 6.6 MB a step; where the system says how large its caches are, the report says whether they hold that.
  if (report["last_level_cache_bytes"].is_null()) {
    CHECK(report["fits_last_level_cache"].is_null());
  } else {
    const bool fits = report["last_level_cache_bytes"] >= report["bytes_read_per_token"];
    CHECK(report["fits_last_level_cache"] == fits);
    CHECK((outcome.output.find("\nremark ") != std::string::npos) == fits);
  }
  CHECK(json::parse(run_tool({"bench", novelist_package(), "--tokens", "2", "--repeats", "1", "--json", "-"}).output)
            .is_object());
  check_failure({"bench", novelist_package(), "--context", "1000", "--tokens", "24"}, 1, "context of 1024");
  const json around = json::parse(run_tool({"bench", novelist_package(), "--device", "host", "--around", "100",
                                            "--tokens", "4", "--repeats", "1", "--records", "--json", "-"})
                                      .output);
  CHECK(around["position"] == 98);
  CHECK(around["memory"].is_null());  // the host device does not trace
  CHECK(around["records"].is_null());
  check_failure({"bench", novelist_package(), "--around", "1", "--tokens", "4"}, 1, "before it");
  check_failure({"bench", "p", "--around", "1", "--context", "4"}, 2, "--context");
  check_failure({"bench", novelist_package(), "--tokens", "1", "--repeats", "1", "--json", folder.path() + "/none/x"},
                1, "written");
}

TEST_CASE("a package of two ranks is compiled, inspected, measured and continues a prompt like one of one") {
  const TemporaryFolder folder;
  const std::string package = folder.path() + "/package";
  const std::string model = MKRT_TEST_DATA "/novelist";
  check_failure({"compile", model, "-o", package, "--ranks", "5"}, 1, "num_attention_heads is 4");
  REQUIRE(run_tool({"compile", model, "-o", package, "--ranks", "2", "--no-images"}).exit_code == 0);
  CHECK(json::parse(run_tool({"inspect", package, "--json"}).output)["ranks"] == 2);

  const auto continuation = [](const std::string& of) {
    const Outcome outcome = run_tool({"generate", of, "--device", "host", "--prompt", "It was", "--max-tokens", "24"});
    REQUIRE_MESSAGE(outcome.exit_code == 0, outcome.errors);
    return outcome.output;
  };
  CHECK(continuation(package) == continuation(novelist_package()));
  const std::vector<std::string> sampled = {"generate", package,        "--device", "host",          "--prompt",
                                            "It was",   "--max-tokens", "12",       "--temperature", "1"};
  const Outcome outcome = run_tool(sampled);
  CHECK_MESSAGE(outcome.exit_code == 0, outcome.errors);
  CHECK(outcome.output == run_tool(sampled).output);

  const Outcome measured =
      run_tool({"bench", package, "--device", "host", "--tokens", "4", "--repeats", "1", "--json", "-"});
  REQUIRE_MESSAGE(measured.exit_code == 0, measured.errors);
  const json report = json::parse(measured.output);
  // 4 layers, one key-value head of 64 on each rank, keys and values in two bytes, at the middle of positions 0 to 3.
  CHECK(report["cache_bytes_read_per_step"] == 2 * 4 * 64 * 2 * 2 * 1.5);
}

}  // namespace
}  // namespace mkrt::cli
