// Calls that all processes make together: where one cannot, none can.
#include <memory>
#include <thread>

#include "model.hpp"

namespace {

using namespace mkrt::test;
using namespace std::chrono_literals;

// An all-gather over another one that fails at its n-th call.
struct Failing {
  mkrt_process_extension inner;
  int calls_left;
  mkrt_status status = MKRT_ERROR_FILE;

  mkrt_process_extension extension() {
    mkrt_process_extension outer = inner;
    outer.user_data = this;
    outer.all_gather = [](void* user, const void* data, uint32_t size, int32_t descriptor, uint64_t timeout,
                          void* out_data, int32_t* out_descriptors, mkrt_error* out_error) {
      auto& self = *static_cast<Failing*>(user);
      if (self.calls_left-- == 0) {
        std::strcpy(out_error->message, "the test's own reason");
        return self.status;
      }
      return self.inner.all_gather(self.inner.user_data, data, size, descriptor, timeout, out_data, out_descriptors,
                                   out_error);
    };
    return outer;
  }
};

// What became of making a model in each of some processes.
std::vector<Outcome> make_in_each(const std::vector<std::string>& packages, const Division& division,
                                  const std::function<void(uint32_t, mkrt_process_extension&)>& change = {}) {
  const std::string address = new_address();
  std::vector<std::unique_ptr<Process>> processes;
  for (uint32_t number = 0; number < division.size(); ++number) {
    processes.push_back(std::make_unique<Process>([&](const Speaker& speaker) {
      mkrt::Runtime runtime;
      const mkrt::Exchange exchange(runtime, address, number, static_cast<uint32_t>(division.size()));
      mkrt_process_extension extension = exchange.extension();
      if (change) change(number, extension);
      speaker.say(outcome_of([&] {
        Model model(packages[number % packages.size()], Share::target(division[number], &extension.base));
        model.step({MKRT_QUEUE_DYNAMIC, 0}, 2);
      }));
    }));
  }
  std::vector<Outcome> outcomes;
  for (const auto& process : processes) outcomes.push_back(process->hear<Outcome>());
  for (const auto& process : processes) CHECK(process->ends_well());
  return outcomes;
}

}  // namespace

TEST_CASE("an exchange that fails at any of its calls is a failure in both processes, with the sentence") {
  const Novelist novelist;
  // One more than there are: then all is well.
  constexpr int calls = 6;
  for (int n = 0; n <= calls; ++n) {
    for (const uint32_t where : {0u, 1u}) {
      CAPTURE(n);
      CAPTURE(where);
      std::unique_ptr<Failing> failing;
      const auto outcomes =
          make_in_each({novelist.path()}, {1, 1}, [&](uint32_t number, mkrt_process_extension& extension) {
            if (number != where) return;
            failing = std::make_unique<Failing>(Failing{extension, n});
            extension = failing->extension();
          });
      const Outcome& own = outcomes[where];
      CAPTURE(own.message());
      CHECK(own.error.status == (n < calls ? MKRT_ERROR_FILE : MKRT_OK));
      if (n < calls) CHECK(own.has("the test's own reason"));
      CHECK(outcomes[1 - where].error.status == (n < calls ? MKRT_ERROR_PEER : MKRT_OK));
    }
  }
}

TEST_CASE("an exchange that gives no sentence, or no status of mkrt, is a failure all the same") {
  const Novelist novelist;
  const auto outcomes = make_in_each({novelist.path()}, {1},
                                     [](uint32_t, mkrt_process_extension& extension) { extension.process_count = 1; });
  CHECK(outcomes[0].error.status == MKRT_ERROR_ARGUMENT);  // one rank for a program of two
  const auto odd = make_in_each({novelist.path()}, {1, 1}, [](uint32_t, mkrt_process_extension& extension) {
    extension.all_gather = [](void*, const void*, uint32_t, int32_t, uint64_t, void*, int32_t*, mkrt_error* out_error) {
      std::memset(out_error->message, 'x', sizeof(out_error->message));  // no end
      return mkrt_status{-7};
    };
  });
  for (const Outcome& outcome : odd) {
    CHECK(outcome.error.status == MKRT_ERROR_PEER);
    CHECK(outcome.has("it gave no reason"));
  }
}

TEST_CASE("an exchange that changes messages is refused") {
  const Novelist novelist;
  const auto outcomes = make_in_each({novelist.path()}, {1, 1}, [](uint32_t, mkrt_process_extension& extension) {
    extension.all_gather = [](void*, const void*, uint32_t size, int32_t, uint64_t, void* out_data, int32_t*,
                              mkrt_error*) {
      std::memset(out_data, 0x5a, size_t{size} * 2);
      return mkrt_status{MKRT_OK};
    };
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.error.status == MKRT_ERROR_PEER);
    CHECK(outcome.has("changed its message"));
  }
}

TEST_CASE("programs that differ are refused in every process") {
  const Novelist one(2);
  const Novelist other(2, 40);  // another context
  const auto outcomes = make_in_each({one.path(), other.path()}, {1, 1});
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.error.status == MKRT_ERROR_ARGUMENT);
    CHECK(outcome.has("the programs of processes 0 and 1 differ"));
  }
}

TEST_CASE("a program for another number of ranks is refused in every process") {
  const Novelist novelist(2);
  for (const Outcome& outcome : make_in_each({novelist.path()}, {1, 2})) {
    CHECK(outcome.error.status == MKRT_ERROR_ARGUMENT);
    CHECK(outcome.has("the program is written for 2 ranks, the mesh has 3"));
  }
}

TEST_CASE("more ranks than a mesh may have are refused in every process") {
  const Novelist novelist(2);
  for (const Outcome& outcome : make_in_each({novelist.path()}, {40, 25})) {
    CHECK(outcome.error.status == MKRT_ERROR_ARGUMENT);
    CHECK(outcome.has("65 ranks together"));
  }
}

TEST_CASE("what one process cannot do fails in the others, which say whose fault it is") {
  const Novelist novelist;
  const std::string address = new_address();
  std::vector<std::unique_ptr<Process>> processes;
  for (uint32_t number = 0; number < 2; ++number) {
    processes.push_back(std::make_unique<Process>([&](const Speaker& speaker) {
      mkrt::Runtime runtime;
      const mkrt::Exchange exchange(runtime, address, number, 2);
      const mkrt_process_extension extension = exchange.extension();
      mkrt::RankOptions rank;
      rank.kind = MKRT_DEVICE_HOST;
      rank.worker_count = 1;
      // A rank with more workers than there may be, then a budget that has no room for a second session.
      rank.worker_count = number == 1 ? MKRT_MAX_HOST_WORKERS + 1 : 1;
      const auto make = [&] {
        return mkrt::Mesh(runtime, mkrt::Span<const mkrt::RankOptions>(&rank, 1), &extension.base);
      };
      speaker.say(outcome_of([&] { make(); }));
      rank.worker_count = 1;
      const mkrt::Mesh mesh = make();
      const mkrt::Program program(runtime, novelist.path());
      const mkrt::ProgramInfo info = program.info();
      const uint64_t budget = number == 0 ? info.weight_bytes + info.session_bytes : 0;
      const mkrt::Executable executable(program, mesh, budget);
      const mkrt::Session session(executable);
      speaker.say(outcome_of([&] { mkrt::Session second(executable); }));
    }));
  }
  const Outcome workers[] = {processes[0]->hear<Outcome>(), processes[1]->hear<Outcome>()};
  for (const Outcome& outcome : workers) CHECK(outcome.error.status == MKRT_ERROR_ARGUMENT);
  CHECK(workers[0].has("process 1 could not do its part of mkrt_mesh_create: a host rank has at most"));
  const Outcome sessions[] = {processes[0]->hear<Outcome>(), processes[1]->hear<Outcome>()};
  for (const Outcome& outcome : sessions) CHECK(outcome.error.status == MKRT_ERROR_OUT_OF_MEMORY);
  CHECK(sessions[1].has("process 0 could not do its part of mkrt_session_create"));
  for (const auto& process : processes) CHECK(process->ends_well());
}

TEST_CASE("processes that make different calls are told so") {
  const Novelist novelist;
  const std::string address = new_address();
  std::vector<std::unique_ptr<Process>> processes;
  for (uint32_t number = 0; number < 2; ++number) {
    processes.push_back(std::make_unique<Process>([&](const Speaker& speaker) {
      Share share(novelist.path(), address, {1, 1}, number);
      speaker.say(outcome_of([&] {
        if (number == 0) mkrt::Session another(share.model.executable());
        if (number == 1) mkrt::Executable another(share.model.program(), share.model.mesh());
      }));
    }));
  }
  for (const auto& process : processes) {
    const auto outcome = process->hear<Outcome>();
    CHECK(outcome.error.status == MKRT_ERROR_PEER);
    CAPTURE(outcome.message());
    CHECK(outcome.has("processes differ in their collective calls"));
    CHECK(outcome.has("in mkrt_session_create"));
    CHECK(outcome.has("in mkrt_executable_create"));
  }
}

TEST_CASE("a process that dies while the others wait for it in a collective call is a failure there") {
  const Novelist novelist;
  const std::string address = new_address();
  Process victim([&](const Speaker& speaker) {
    mkrt::Runtime runtime;
    const mkrt::Exchange exchange(runtime, address, 0, 2);
    speaker.say('r');
    std::this_thread::sleep_for(60s);
  });
  Process survivor([&](const Speaker& speaker) {
    speaker.say(outcome_of([&] { Share share(novelist.path(), address, {1, 1}, 1); }));
  });
  victim.hear<char>();
  std::this_thread::sleep_for(20ms);
  victim.kill();
  CHECK(survivor.hear<Outcome>(5s).error.status == MKRT_ERROR_PEER);
}
