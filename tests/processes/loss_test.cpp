// Processes of a mesh that die, hang, fail or do something else in the middle of an execute: the others get a status
// and its sentence, and go on after a reset where they can.
#include <functional>
#include <memory>
#include <thread>

#include "model.hpp"

namespace {

using namespace mkrt::test;
using namespace std::chrono_literals;

const Division kTwo = {1, 1};
// More steps than any test waits for.
constexpr uint32_t kEndless = 100'000'000;

mkrt::ExecuteOptions endless(std::chrono::nanoseconds limit) {
  mkrt::ExecuteOptions options;
  options.step_count = kEndless;
  options.wait_limit = limit;
  return options;
}

// A model in two processes that both run `body`; the first argument is the process's number.
class Two {
 public:
  using Body = std::function<void(uint32_t, Share&, const Speaker&)>;
  Two(const std::string& package, const Body& body) {
    const std::string address = new_address();
    for (uint32_t number = 0; number < 2; ++number) {
      processes_.push_back(std::make_unique<Process>([&](const Speaker& speaker) {
        Share share(package, address, kTwo, number);
        body(number, share, speaker);
      }));
    }
  }
  Process& operator[](uint32_t number) { return *processes_[number]; }

 private:
  std::vector<std::unique_ptr<Process>> processes_;
};

// The logits after a few steps, from a fresh or reset session.
std::vector<float> decode(Model& model) {
  model.start(0, read_golden().front().prompt_ids);
  model.step({MKRT_QUEUE_DYNAMIC, 0}, 12);
  return model.logits(0);
}

void check_same(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(!a.empty());
  REQUIRE(a.size() == b.size());
  CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Both decode, then `fail` comes to an end in both, then both decode again after a reset, with the same result. Returns
// how it ended in each.
std::vector<Outcome> check_recovery(const std::string& package,
                                    const std::function<Outcome(uint32_t, Share&, const Speaker&)>& fail,
                                    const std::function<void(Two&)>& meanwhile = {}) {
  Two two(package, [&](uint32_t number, Share& share, const Speaker& speaker) {
    speaker.say(decode(share.model));
    speaker.say(fail(number, share, speaker));
    share.model.reset();
    speaker.say(decode(share.model));
  });
  const std::vector<float> before[] = {two[0].hear_all<float>(), two[1].hear_all<float>()};
  if (meanwhile) meanwhile(two);
  std::vector<Outcome> outcomes;
  for (uint32_t number = 0; number < 2; ++number) outcomes.push_back(two[number].hear<Outcome>());
  for (uint32_t number = 0; number < 2; ++number) {
    check_same(two[number].hear_all<float>(), before[0]);
    check_same(before[number], before[0]);
    CHECK(two[number].ends_well());
  }
  return outcomes;
}

}  // namespace

TEST_CASE("a process that is killed in the middle of a step is a status on the other within its deadline, 100 times") {
  const Novelist novelist;
  constexpr auto limit = 1000ms;
  std::mt19937 random(3);
  for (uint32_t round = 0; round < 100; ++round) {
    CAPTURE(round);
    Two two(novelist.path(), [&](uint32_t, Share& share, const Speaker& speaker) {
      mkrt::Session& session = share.model.session();
      const uint64_t value = session.execute(endless(limit));
      speaker.say('r');
      speaker.say(outcome_of([&] { session.wait(value); }));
      // Nothing waits for who is gone.
      speaker.say(outcome_of([&] { session.reset(); }));
      speaker.say(outcome_of([&] { session.execute(endless(limit)); }));
      share.model.logits(0);
    });
    for (uint32_t number = 0; number < 2; ++number) two[number].hear<char>();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    const uint32_t victim = round % 2;
    Process& survivor = two[1 - victim];
    two[victim].kill();
    const auto outcome = survivor.hear<Outcome>(limit);
    CAPTURE(outcome.message());
    CHECK(outcome.error.status == MKRT_ERROR_PEER);
    CHECK(outcome.has("system process " + std::to_string(two[victim].id())));
    CHECK(outcome.error.rank == static_cast<int32_t>(victim));
    CHECK(survivor.hear<Outcome>(limit).error.status == MKRT_ERROR_PEER);
    CHECK(survivor.hear<Outcome>(limit).error.status == MKRT_ERROR_SESSION_FAILED);
    CHECK(survivor.ends_well());
  }
}

TEST_CASE("a process that cannot be watched and is killed is a missed deadline on the other") {
  const Novelist novelist;
  constexpr auto limit = 150ms;
  // The exchange, without the descriptors of the first all-gather: those by which processes are watched.
  struct Blind {
    mkrt_process_extension inner;
    bool first = true;
  };
  const std::string address = new_address();
  const auto run = [&](uint32_t number, const Speaker& speaker) {
    mkrt::Runtime runtime;
    const mkrt::Exchange exchange(runtime, address, number, 2);
    Blind blind{exchange.extension()};
    mkrt_process_extension extension = blind.inner;
    extension.user_data = &blind;
    extension.all_gather = [](void* user, const void* data, uint32_t size, int32_t descriptor, uint64_t timeout,
                              void* out_data, int32_t* out_descriptors, mkrt_error* out_error) {
      auto& self = *static_cast<Blind*>(user);
      return self.inner.all_gather(self.inner.user_data, data, size, std::exchange(self.first, false) ? -1 : descriptor,
                                   timeout, out_data, out_descriptors, out_error);
    };
    Model model(novelist.path(), Share::target(1, &extension.base));
    const uint64_t value = model.session().execute(endless(limit));
    speaker.say('r');
    speaker.say(outcome_of([&] { model.session().wait(value); }));
  };
  Process victim([&](const Speaker& speaker) { run(0, speaker); });
  Process survivor([&](const Speaker& speaker) { run(1, speaker); });
  victim.hear<char>();
  survivor.hear<char>();
  std::this_thread::sleep_for(2ms);
  victim.kill();
  CHECK(survivor.hear<Outcome>().error.status == MKRT_ERROR_DEADLINE);
  CHECK(survivor.ends_well());
}

TEST_CASE("a process that stops is a missed deadline on the other, and both go on when it does") {
  const Novelist novelist;
  const auto outcomes = check_recovery(
      novelist.path(),
      [](uint32_t, Share& share, const Speaker& speaker) {
        const uint64_t value = share.model.session().execute(endless(150ms));
        speaker.say('r');
        const Outcome outcome = outcome_of([&] { share.model.session().wait(value); });
        // Tiles of the process that is stopped have not ended: a reset waits for them, but not for ever.
        Outcome reset = outcome_of([&] { share.model.reset(); });
        speaker.say(reset);
        for (; reset.error.status == MKRT_ERROR_BUSY; reset = outcome_of([&] { share.model.reset(); })) {
        }
        return outcome;
      },
      [](Two& two) {
        for (uint32_t number = 0; number < 2; ++number) two[number].hear<char>();
        two[1].signal(SIGSTOP);
        const auto reset = two[0].hear<Outcome>();
        CHECK(reset.error.status == MKRT_ERROR_BUSY);
        CHECK(reset.has("tiles of process 1"));
        two[1].signal(SIGCONT);
        two[1].hear<Outcome>();
      });
  CHECK(outcomes[0].error.status == MKRT_ERROR_DEADLINE);
  CHECK(outcomes[1].error.status == MKRT_ERROR_DEADLINE);
}

TEST_CASE("a cancel in one process ends the execute in all") {
  const Novelist novelist;
  for (const uint32_t canceller : {0u, 1u}) {
    const auto outcomes = check_recovery(novelist.path(), [&](uint32_t number, Share& share, const Speaker&) {
      mkrt::Session& session = share.model.session();
      const uint64_t value = session.execute(endless(10s));
      std::this_thread::sleep_for(3ms);
      if (number == canceller) session.cancel();
      return outcome_of([&] { session.wait(value); });
    });
    CHECK(outcomes[canceller].message() == "the execute was cancelled");
    CHECK(outcomes[1 - canceller].message() ==
          "process " + std::to_string(canceller) + " of the mesh cancelled the execute");
    for (const Outcome& outcome : outcomes) CHECK(outcome.error.status == MKRT_ERROR_CANCELLED);
  }
}

TEST_CASE("a cancel of an execute that waits for its turn reaches the others too") {
  const Novelist novelist;
  const auto outcomes = check_recovery(novelist.path(), [](uint32_t number, Share& share, const Speaker&) {
    mkrt::Session first(share.model.executable());
    const uint64_t running = first.execute(endless(10s));
    const uint64_t waiting = share.model.session().execute(endless(10s));
    if (number == 1) share.model.session().cancel();
    const Outcome own = number == 1 ? outcome_of([&] { share.model.session().wait(waiting); }) : Outcome{};
    std::this_thread::sleep_for(3ms);
    first.cancel();
    outcome_of([&] { first.wait(running); });
    return number == 1 ? own : outcome_of([&] { share.model.session().wait(waiting); });
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.error.status == MKRT_ERROR_CANCELLED);
}

TEST_CASE("a fault in one process is reported by all, with its place") {
  const Novelist novelist;
  const auto outcomes = check_recovery(novelist.path(), [](uint32_t number, Share& share, const Speaker&) {
    share.model.reset();
    // Every rank's own list of tokens: that of rank 1 has one that does not exist.
    share.model.start(0, {number == 1 ? 1'000'000 : 1});
    return outcome_of([&] { share.model.step({MKRT_QUEUE_DYNAMIC, 0}, 4); });
  });
  for (const Outcome& outcome : outcomes) {
    CAPTURE(outcome.message());
    CHECK(outcome.error.status == MKRT_ERROR_FAULT);
    CHECK(outcome.error.rank == 1);
    CHECK(outcome.has("rank 1, worker"));
  }
}

TEST_CASE("a process that does not execute is named by the one that does") {
  const Novelist novelist;
  const auto outcomes = check_recovery(novelist.path(), [](uint32_t number, Share& share, const Speaker&) {
    if (number == 1) {
      std::this_thread::sleep_for(300ms);
      return outcome_of([&] { share.model.step({MKRT_QUEUE_DYNAMIC, 0}, 1); });
    }
    mkrt::ExecuteOptions options;
    options.wait_limit = 50ms;
    return outcome_of([&] { share.model.session().wait(share.model.session().execute(options)); });
  });
  CHECK(outcomes[0].error.status == MKRT_ERROR_DEADLINE);
  CHECK(outcomes[0].has("process 0: waited"));
  CHECK(outcomes[0].has("for process 1"));
  CHECK(outcomes[0].has("to begin the execute"));
  // The late one finds that the other has given up.
  CHECK(outcomes[1].error.status == MKRT_ERROR_DEADLINE);
}

TEST_CASE("processes that execute different numbers of steps are told so") {
  const Novelist novelist;
  const auto outcomes = check_recovery(novelist.path(), [](uint32_t number, Share& share, const Speaker&) {
    return outcome_of([&] { share.model.step({MKRT_QUEUE_STATIC, 0}, 2 + number); });
  });
  for (const Outcome& outcome : outcomes) {
    CAPTURE(outcome.message());
    CHECK(outcome.error.status == MKRT_ERROR_PEER);
    CHECK(outcome.has("another number of steps"));
  }
}

TEST_CASE("a session that one process has reset and another has not does not run") {
  const Novelist novelist;
  Two two(novelist.path(), [](uint32_t number, Share& share, const Speaker& speaker) {
    mkrt::Session& session = share.model.session();
    decode(share.model);
    if (number == 0) session.reset();
    if (number == 1) std::this_thread::sleep_for(50ms);  // until the other has done it
    mkrt::ExecuteOptions options;
    options.wait_limit = 200ms;
    speaker.say(outcome_of([&] { session.wait(session.execute(options)); }));
    if (number == 1) std::this_thread::sleep_for(500ms);  // until the other has seen it
  });
  const auto ahead = two[0].hear<Outcome>();
  const auto behind = two[1].hear<Outcome>();
  CAPTURE(ahead.message());
  CAPTURE(behind.message());
  CHECK(behind.error.status == MKRT_ERROR_PEER);
  CHECK(behind.has("process 0 of the mesh has reset the session, and this one has not"));
  CHECK(ahead.error.status == MKRT_ERROR_DEADLINE);
  CHECK(ahead.has("it has not reset the session"));
}

TEST_CASE("a session that one process has destroyed does not run in the others, and is not waited for") {
  const Novelist novelist;
  Two two(novelist.path(), [](uint32_t number, Share& share, const Speaker& speaker) {
    mkrt::Session session(share.model.executable());
    if (number == 1) session.close();
    decode(share.model);  // another session goes on
    if (number == 0) {
      speaker.say(outcome_of([&] { session.wait(session.execute()); }));
      speaker.say(outcome_of([&] { session.reset(); }));
    }
    decode(share.model);
  });
  for (int i = 0; i < 2; ++i) {
    const auto outcome = two[0].hear<Outcome>();
    CHECK(outcome.error.status == MKRT_ERROR_PEER);
    CHECK(outcome.has("process 1 of the mesh has destroyed its session"));
  }
  for (uint32_t number = 0; number < 2; ++number) CHECK(two[number].ends_well());
}

TEST_CASE("a process that destroys a running session, or all it has, ends the execute of the others") {
  const Novelist novelist;
  Two two(novelist.path(), [](uint32_t number, Share& share, const Speaker& speaker) {
    mkrt::Session& session = share.model.session();
    const uint64_t value = session.execute(endless(10s));
    std::this_thread::sleep_for(2ms);
    if (number == 1) {
      session.close();
      speaker.say('d');
    } else {
      speaker.say(outcome_of([&] { session.wait(value); }));
    }
  });
  two[1].hear<char>(5s);
  CHECK(two[0].hear<Outcome>(5s).error.status == MKRT_ERROR_CANCELLED);
  for (uint32_t number = 0; number < 2; ++number) CHECK(two[number].ends_well());
}

TEST_CASE("a process reads and writes its own ranks only") {
  const Novelist novelist;
  Two two(novelist.path(), [](uint32_t number, Share& share, const Speaker& speaker) {
    Model& model = share.model;
    const uint32_t tokens = model.program().find_tensor("tokens");
    speaker.say(outcome_of([&] { model.session().write_value<int32_t>(tokens, 1, 0, 1 - number); }));
    speaker.say(outcome_of([&] { model.session().read_value<int32_t>(tokens, 0, 1 - number); }));
    speaker.say(outcome_of([&] { model.mesh().device_info(1 - number); }));
    speaker.say(model.mesh().rank_count());
    speaker.say(model.mesh().local_ranks());
    model.mesh().device_info(number);
  });
  for (uint32_t number = 0; number < 2; ++number) {
    for (int i = 0; i < 3; ++i) {
      const auto outcome = two[number].hear<Outcome>();
      CHECK(outcome.error.status == MKRT_ERROR_ARGUMENT);
      CHECK(outcome.has("is of process " + std::to_string(1 - number)));
    }
    CHECK(two[number].hear<uint32_t>() == 2);
    const auto local = two[number].hear<mkrt::LocalRanks>();
    CHECK(local.first == number);
    CHECK(local.count == 1);
    CHECK(two[number].ends_well());
  }
}
