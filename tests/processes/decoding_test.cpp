// Models whose ranks are in several processes: the bits must be those of one process.
#include <chrono>
#include <memory>
#include <thread>

#include "model.hpp"

namespace {

using namespace mkrt::test;

// Runs `decode` in each process of the division. What they say must be the same in all.
std::vector<float> in_processes(const std::string& package, const Division& division,
                                const std::function<std::vector<float>(Model&)>& decode) {
  const std::string address = new_address();
  std::vector<std::unique_ptr<Process>> processes;
  for (uint32_t number = 0; number < division.size(); ++number) {
    processes.push_back(std::make_unique<Process>([&](const Speaker& speaker) {
      Share share(package, address, division, number);
      speaker.say(decode(share.model));
    }));
  }
  std::vector<float> first;
  for (const auto& process : processes) {
    std::vector<float> values = process->hear_all<float>();
    CHECK(process->ends_well());
    if (first.empty()) first = values;
    CHECK(values.size() == first.size());
    CHECK(std::memcmp(values.data(), first.data(), first.size() * sizeof(float)) == 0);
  }
  return first;
}

void check_same(const std::string& package, const std::vector<Division>& divisions,
                const std::function<std::vector<float>(Model&)>& decode) {
  const std::vector<float> expected = in_processes(package, {ranks_of(divisions.front())}, decode);
  REQUIRE(!expected.empty());
  for (const Division& division : divisions) {
    CAPTURE(division.size());
    const std::vector<float> found = in_processes(package, division, decode);
    REQUIRE(found.size() == expected.size());
    CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0);
  }
}

// One for each number of ranks: ways are compared with each other where ranks are in one process.
constexpr Way kWays[] = {{MKRT_QUEUE_DYNAMIC, 0}, {MKRT_QUEUE_STATIC, 2}};

}  // namespace

TEST_CASE("a real model gives the stored tokens and logits in 2 and 3 processes, also with unequal shares") {
  const std::vector<Division> divisions[] = {{{1, 1}}, {{2, 1}, {1, 1, 1}}};
  for (size_t i = 0; i < std::size(divisions); ++i) {
    const TemporaryFolder folder;
    std::vector<Golden> cases = read_golden();
    if (i == 1) cases.resize(2);  // they are many steps for three ranks on a small machine
    compile_novelist(Share::target(ranks_of(divisions[i].front()), nullptr), folder.path("package"),
                     static_cast<uint32_t>(cases.size()));
    check_same(folder.path("package"), divisions[i], [&](Model& model) {
      double largest = 0;
      size_t wrong = 0;
      const Trace trace = run_golden(model, cases, kWays[i], largest, wrong);
      if (wrong != 0 || !(largest < kTolerance)) throw std::runtime_error("other tokens or logits than stored");
      return joined(trace);
    });
  }
}

TEST_CASE("random models of every family have the same logits in 2 and 3 processes as in one") {
  for (const char* shape : {"tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"}) {
    CAPTURE(shape);
    const TemporaryFolder folder;
    mkrt::tools::RandomModel random_model;
    random_model.config = mkrt::tools::shape_config(shape);
    random_model.deviation = 0.1;
    random_model.seed = 7;
    mkrt::tools::write_random_model(random_model, folder.path("model"));
    mkrt::compile::Options options;
    options.model = folder.path("model");
    options.output = folder.path("package");
    options.batch = 2;
    compile(Share::target(3, nullptr), options);
    check_same(folder.path("package"), {{1, 2}, {1, 1, 1}}, [&](Model& model) {
      std::mt19937 random(11);
      std::vector<std::vector<int32_t>> prompts(2, std::vector<int32_t>(kPrompt));
      for (auto& prompt : prompts) {
        for (int32_t& token : prompt) token = static_cast<int32_t>(random() % model.vocabulary);
      }
      return joined(run(model, prompts, kWays[0], {}));
    });
  }
}

TEST_CASE("sessions that are executed in one order run in it everywhere, however late a process is") {
  const TemporaryFolder folder;
  compile_novelist(Share::target(2, nullptr), folder.path("package"), 1);
  const Golden golden = read_golden().front();
  check_same(folder.path("package"), {{1, 1}}, [&](Model& model) {
    mkrt::Session other(model.executable());
    const uint32_t rank = model.mesh().local_ranks().first;
    model.start(0, golden.prompt_ids);
    uint64_t values[2] = {};
    mkrt::ExecuteOptions one;
    for (int i = 0; i < 30; ++i) {
      // The first process finds its mesh idle when the others have their queues full, and the other way round.
      if (i % 7 == static_cast<int>(rank)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      values[0] = model.session().execute(one);
      if (i % 3 == 0) values[1] = other.execute(one);
    }
    model.session().wait(values[0]);
    other.wait(values[1]);
    return model.logits(0);
  });
}

TEST_CASE("many steps in one execute, and executes in flight, give the same tokens in 2 processes as in one") {
  const TemporaryFolder folder;
  compile_novelist(Share::target(2, nullptr), folder.path("package"), 1);
  const Golden golden = read_golden().front();
  check_same(folder.path("package"), {{1, 1}}, [&](Model& model) {
    model.start(0, golden.prompt_ids);
    model.step(kWays[0], 20);
    mkrt::ExecuteOptions one;
    uint64_t last = 0;
    for (int i = 0; i < 20; ++i) last = model.session().execute(one);
    model.session().wait(last);
    std::vector<float> all = model.logits(0);
    for (size_t i = 0; i < 40; ++i) all.push_back(static_cast<float>(model.token(0, i)));
    return all;
  });
}
