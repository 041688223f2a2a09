// A model on ranks in several processes. Each process is this program started anew, with one of the test cases below
// that are skipped otherwise: a process in which a CUDA driver was opened cannot be copied.
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <thread>

#include "gpu.hpp"
#include "outcome.hpp"
#include "process.hpp"

namespace {

using namespace mkrt::test;
using namespace std::chrono_literals;

constexpr char descriptor_variable[] = "MKRT_TEST_PROCESS";  // main.cpp looks whether it is there
constexpr char share_variable[] = "MKRT_TEST_SHARE";

// ---- What a process is told, and what it makes of it ---------------------------------------------------------------

// One of two processes, with a rank.
struct Share {
  uint32_t number = 0;
  uint32_t ordinal = 0;  // of its GPU
  std::string address;
  std::string package;
};

Share own_share() {
  Share share;
  std::istringstream(std::getenv(share_variable)) >> share.number >> share.ordinal >> share.address >> share.package;
  return share;
}
Speaker own_speaker() { return Speaker(std::atoi(std::getenv(descriptor_variable))); }

// The model of a process, as its share says.
class Member {
 public:
  explicit Member(const Share& share)
      : exchange_(runtime_, share.address, share.number, 2), extension_(exchange_.extension()) {
    Target target = gpu({0});
    target.rank.ordinal = share.ordinal;
    target.extensions = &extension_.base;
    model_ = std::make_unique<Model>(share.package, target);
  }
  Model& operator*() { return *model_; }
  Model* operator->() { return model_.get(); }

 private:
  mkrt::Runtime runtime_;
  mkrt::Exchange exchange_;
  mkrt_process_extension extension_;
  std::unique_ptr<Model> model_;
};

mkrt::ExecuteOptions endless(std::chrono::nanoseconds limit) {
  mkrt::ExecuteOptions options;
  options.step_count = 100'000'000;  // more than any test waits for
  options.wait_limit = limit;
  return options;
}

std::vector<float> decode(Model& model) {
  model.start(0, read_golden().front().prompt_ids);
  model.step({MKRT_QUEUE_DYNAMIC, 0}, 12);
  return model.logits(0);
}

// ---- What the test sees --------------------------------------------------------------------------------------------

// Both processes of a test case, with a GPU each where there are so many.
class Two {
 public:
  Two(const std::string& test_case, const std::string& package, uint32_t gpus) {
    const std::string address = new_address();
    for (uint32_t number = 0; number < 2; ++number) {
      const std::string share =
          std::to_string(number) + " " + std::to_string(number % gpus) + " " + address + " " + package;
      REQUIRE(::setenv(share_variable, share.c_str(), 1) == 0);
      const std::vector<std::string> command = {"/proc/self/exe", "--no-skip", "--test-case=" + test_case};
      processes_[number] = std::make_unique<Process>(command, descriptor_variable);
    }
  }
  Process& operator[](uint32_t number) { return *processes_[number]; }

 private:
  std::array<std::unique_ptr<Process>, 2> processes_;
};

// Numbers of GPUs to try: one that both share, and where there are two, one for each.
std::vector<uint32_t> gpu_counts() {
  const uint32_t count = mkrt::Runtime().device_count() - 1;  // the last is the host
  return count > 1 ? std::vector<uint32_t>{1, 2} : std::vector<uint32_t>{1};
}

void check_same(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(!a.empty());
  REQUIRE(a.size() == b.size());
  CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

constexpr Way kWays[] = {{MKRT_QUEUE_DYNAMIC, 0}, {MKRT_QUEUE_STATIC, 0}};

}  // namespace

TEST_CASE("process: decode the golden cases" * doctest::skip()) {
  const Speaker speaker = own_speaker();
  const std::vector<Golden> cases = read_golden();
  Member member(own_share());
  for (const Way& way : kWays) {
    double largest = 0;
    size_t wrong = 0;
    const Trace trace = run_golden(*member, cases, way, largest, wrong);
    speaker.say(largest);
    speaker.say(wrong);
    speaker.say(joined(trace));
  }
}

TEST_CASE("two processes with a rank each decode as the stored answers say, bit for bit as two ranks of one process") {
  const TemporaryFolder folder;
  const std::vector<Golden> cases = read_golden();
  const Target target = gpu_ranks(2, 1, {0});
  compile_novelist(target, folder.path("package"), static_cast<uint32_t>(cases.size()));
  std::vector<float> expected;
  {
    Model model(folder.path("package"), target);
    double largest = 0;
    size_t wrong = 0;
    expected = joined(run_golden(model, cases, kWays[0], largest, wrong));
  }
  for (const uint32_t gpus : gpu_counts()) {
    CAPTURE(gpus);
    const auto begin = Clock::now();
    Two two("process: decode the golden cases", folder.path("package"), gpus);
    for (size_t way = 0; way < std::size(kWays); ++way) {
      for (uint32_t number = 0; number < 2; ++number) {
        CHECK(two[number].hear<double>(120s) < kTolerance);
        CHECK(two[number].hear<size_t>() == 0);
        check_same(two[number].hear_all<float>(), expected);
      }
    }
    for (uint32_t number = 0; number < 2; ++number) CHECK(two[number].ends_well());
    MESSAGE(gpus << " GPUs: " << std::chrono::duration<double>(Clock::now() - begin).count() << " s in all");
  }
}

TEST_CASE("process: run until the other is killed" * doctest::skip()) {
  constexpr auto limit = 5s;
  const Speaker speaker = own_speaker();
  Member member(own_share());
  mkrt::Session& session = member->session();
  decode(*member);
  const uint64_t value = session.execute(endless(limit));
  speaker.say('r');
  speaker.say(outcome_of([&] { session.wait(value); }));
  // Nothing waits for who is gone.
  speaker.say(outcome_of([&] { session.reset(); }));
  speaker.say(outcome_of([&] { session.execute(endless(limit)); }));
  member->logits(0);
}

TEST_CASE("a process that is killed in the middle of a step is a status on the other within its deadline, 20 times") {
  const Novelist novelist(gpu_ranks(2));
  std::mt19937 random(3);
  for (const uint32_t gpus : gpu_counts()) {
    double longest = 0;
    for (uint32_t round = 0; round < 20; ++round) {
      CAPTURE(gpus);
      CAPTURE(round);
      Two two("process: run until the other is killed", novelist.package(), gpus);
      for (uint32_t number = 0; number < 2; ++number) two[number].hear<char>();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      const uint32_t victim = round % 2;
      Process& survivor = two[1 - victim];
      const auto killed = Clock::now();
      two[victim].kill();
      const auto outcome = survivor.hear<Outcome>(5s);
      longest = std::max(longest, std::chrono::duration<double, std::milli>(Clock::now() - killed).count());
      CAPTURE(outcome.message());
      CHECK(outcome.error.status == MKRT_ERROR_PEER);
      CHECK(contains(outcome.message(), "system process " + std::to_string(two[victim].id())));
      CHECK(outcome.error.rank == static_cast<int32_t>(victim));
      CHECK(survivor.hear<Outcome>(5s).error.status == MKRT_ERROR_PEER);
      CHECK(survivor.hear<Outcome>(5s).error.status == MKRT_ERROR_SESSION_FAILED);
      CHECK(survivor.ends_well());
    }
    MESSAGE(gpus << " GPUs: the other knew after " << longest << " ms at most");
  }
}

TEST_CASE("process: be cancelled and meet a fault and decode after each" * doctest::skip()) {
  const Share share = own_share();
  const Speaker speaker = own_speaker();
  Member member(share);
  mkrt::Session& session = member->session();
  speaker.say(decode(*member));
  for (const uint32_t canceller : {0u, 1u}) {
    const uint64_t value = session.execute(endless(20s));
    std::this_thread::sleep_for(20ms);
    if (share.number == canceller) session.cancel();
    speaker.say(outcome_of([&] { session.wait(value); }));
    member->reset();
    speaker.say(decode(*member));
    member->reset();
  }
  // Every rank's own list of tokens: that of rank 1 has one that does not exist.
  member->start(0, {share.number == 1 ? 1'000'000 : 1});
  speaker.say(outcome_of([&] { member->step(kWays[0], 4); }));
  member->reset();
  speaker.say(decode(*member));
}

TEST_CASE("a cancel and a fault in one process end the execute in both, and a reset session works as a new one") {
  const Novelist novelist(gpu_ranks(2));
  for (const uint32_t gpus : gpu_counts()) {
    CAPTURE(gpus);
    Two two("process: be cancelled and meet a fault and decode after each", novelist.package(), gpus);
    const std::vector<float> first = two[0].hear_all<float>();
    check_same(two[1].hear_all<float>(), first);
    for (const uint32_t canceller : {0u, 1u}) {
      for (uint32_t number = 0; number < 2; ++number) {
        const auto outcome = two[number].hear<Outcome>();
        CHECK(outcome.error.status == MKRT_ERROR_CANCELLED);
        CHECK(outcome.message() ==
              (number == canceller ? "the execute was cancelled"
                                   : "process " + std::to_string(canceller) + " of the mesh cancelled the execute"));
        check_same(two[number].hear_all<float>(), first);
      }
    }
    for (uint32_t number = 0; number < 2; ++number) {
      const auto outcome = two[number].hear<Outcome>();
      CAPTURE(outcome.message());
      CHECK(outcome.error.status == MKRT_ERROR_FAULT);
      CHECK(outcome.error.rank == 1);
      check_same(two[number].hear_all<float>(), first);
      CHECK(two[number].ends_well());
    }
  }
}
