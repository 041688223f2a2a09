// Every driver call fails once: the status is right, nothing leaks, the caller's context stays, and all works after.
#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <utility>

#include "fixture.hpp"

using namespace mkrt;
using namespace mkrt::cuda;
using namespace mkrt::cuda::test;
using host::test::request;

namespace {

constexpr Result some_failure = 999;

struct StepOutcome {
  mkrt_status status = MKRT_OK;
  int32_t driver_code = -1;
};

// One call of the interface, as a status.
StepOutcome outcome_of(const std::function<mkrt_status(mkrt_error*)>& call) {
  mkrt_error error = MKRT_ERROR_INIT;
  try {
    const mkrt_status status = call(&error);
    return {status, error.driver_code};
  } catch (const base::Failure& failure) {
    CHECK(!failure.message().empty());
    return {failure.status(), failure.driver_code()};
  }
}

// Everything that an application does, from creating a mesh to destroying it, a step at a time.
class Scenario {
 public:
  Scenario(DriverDouble& gpu, const Work& work, RankDescs ranks)
      : gpu_(gpu),
        work_(work),
        ranks_(ranks),
        before_(gpu.context_stack()),
        begin_(random_state(work.program->rank_count)),
        expected_(host_result(work, begin_, 3)) {}

  // Where a step fails, `on_failure` decides whether it is tried again, without a failure this time, or all ends there.
  using OnFailure = std::function<bool(const char* step, bool loading, const StepOutcome& outcome)>;
  // What was being done when the call failed that was to.
  enum class Doing { anything, cancelling, destroying };
  Doing failed_while() const { return failed_while_; }
  void run(const OnFailure& on_failure) {
    on_failure_ = on_failure;
    if (run_steps()) CHECK(finished_);
    destroy();
  }

 private:
  bool run_steps() {
    return load("create a mesh", [&] { mesh_ = make_mesh(gpu_, ranks_); }) &&
           load("describe it", [&] { describe(); }) &&
           load("load", [&] { executable_ = mesh_->load(work_.program, {}); }) &&
           load("create a session", [&] { session_ = executable_->create_session(); }) &&
           load("trace", [&] { session_->trace(4); }) && use() && cancel() && work_again();
  }
  bool use() {
    return query() && step("write", [&](mkrt_error* e) { return write(e); }) && execute("execute", steps()) &&
           wait("wait", steps()) && step("read", [&](mkrt_error* e) { return read(e); }) &&
           step("read a trace", [&](mkrt_error* e) { return session_->read_trace(1, 4, trace_, e); });
  }
  // Of work in flight, for which the driver is asked.
  bool query() {
    Hold holding;
    if (!execute("execute what holds", hold())) return false;
    bool first = true;
    const bool done = step("query", [&](mkrt_error* e) {
      if (!std::exchange(first, false)) {
        holding.release();
        start_again(e);
      }
      uint64_t reached = 0;
      return session_->query(&reached, e);
    });
    holding.release();
    return done && wait("wait for what holds", hold());
  }
  // A launch that waits for ever is cancelled; should the cancel not get through, it ends by its deadline.
  bool cancel() {
    const device::ExecuteRequest stuck = request(entry_stuck, 1, MKRT_QUEUE_DYNAMIC, 0, 20 * millisecond);
    if (!execute("execute what hangs", stuck)) return false;
    notice_failed_call(Doing::anything);
    session_->cancel();
    notice_failed_call(Doing::cancelling);
    check_context();
    const StepOutcome ended = outcome_of([&](mkrt_error* e) { return session_->wait(value_, UINT64_MAX, e); });
    const bool stopped = ended.status == MKRT_ERROR_CANCELLED || ended.status == MKRT_ERROR_DEADLINE;
    CHECK((stopped || ended.status == MKRT_ERROR_DRIVER));
    if (!stopped && !on_failure_("wait for what hangs", false, ended)) return false;
    return step("reset", [&](mkrt_error* e) { return reset(e); });
  }
  bool work_again() {
    const bool done =
        execute("execute again", count()) && wait("wait again", count()) && step("read again", [&](mkrt_error* e) {
          uint32_t total = 0;
          const mkrt_status status = session_->read(ranks_.size() - 1, work_.total, 0, sizeof(total), &total, e);
          if (status == MKRT_OK) CHECK(total == 1);
          return status;
        });
    finished_ = done;
    return done;
  }

  void describe() {
    mkrt_device_info info{};
    info.struct_size = sizeof(info);
    mesh_->describe(0, &info);
    describe_device(gpu_.driver(), 0, &info);
    CHECK(info.worker_count == 4);
  }
  mkrt_status write(mkrt_error* error) {
    mkrt_status status = MKRT_OK;
    for (uint32_t rank = 0; rank < ranks_.size() && status == MKRT_OK; ++rank) {
      status = session_->write(rank, work_.state, 0, &begin_[size_t{rank} * width], width * sizeof(uint32_t), error);
    }
    return status;
  }
  mkrt_status read(mkrt_error* error) {
    std::vector<uint32_t> state(begin_.size());
    mkrt_status status = MKRT_OK;
    for (uint32_t rank = 0; rank < ranks_.size() && status == MKRT_OK; ++rank) {
      status = session_->read(rank, work_.state, 0, width * sizeof(uint32_t), &state[size_t{rank} * width], error);
    }
    if (status == MKRT_OK) CHECK(state == expected_);
    return status;
  }
  // A launch that is still on its way when the driver failed to answer is waited for.
  mkrt_status reset(mkrt_error* error) { return session_->reset(error); }

  // Ranks that were launched wait for one that could not be, and for so long where they cannot be told either.
  static device::ExecuteRequest limited(uint32_t entry, uint32_t steps) {
    return request(entry, steps, MKRT_QUEUE_DYNAMIC, 0, 500 * millisecond);
  }
  static device::ExecuteRequest hold() { return limited(entry_hold, 1); }
  static device::ExecuteRequest steps() { return limited(entry_step, 3); }
  static device::ExecuteRequest count() { return limited(entry_count, 1); }
  // What failed is enqueued anew on a session that was reset: of several ranks, some may have been launched.
  bool execute(const char* name, const device::ExecuteRequest& what) {
    bool first = true;
    return step(name, [&](mkrt_error* e) {
      if (!std::exchange(first, false)) start_again(e);
      return session_->execute(what, &value_, e);
    });
  }
  bool wait(const char* name, const device::ExecuteRequest& what) {
    bool first = true;
    return step(name, [&](mkrt_error* e) {
      if (!std::exchange(first, false)) {
        start_again(e);
        CHECK(session_->execute(what, &value_, e) == MKRT_OK);
      }
      return session_->wait(value_, UINT64_MAX, e);
    });
  }
  void start_again(mkrt_error* error) {
    CHECK(session_->reset(error) == MKRT_OK);
    CHECK(write(error) == MKRT_OK);
  }

  bool load(const char* name, const std::function<void()>& call) {
    return attempt(name, true, [&](mkrt_error*) {
      call();
      return MKRT_OK;
    });
  }
  bool step(const char* name, const std::function<mkrt_status(mkrt_error*)>& call) {
    return attempt(name, false, call);
  }
  bool attempt(const char* name, bool loading, const std::function<mkrt_status(mkrt_error*)>& call) {
    StepOutcome outcome = outcome_of(call);
    check_context();
    if (outcome.status == MKRT_OK) return true;
    if (!on_failure_(name, loading, outcome)) return false;
    outcome = outcome_of(call);
    check_context();
    CAPTURE(name);
    CHECK(outcome.status == MKRT_OK);
    return outcome.status == MKRT_OK;
  }
  void check_context() const { CHECK(gpu_.context_stack() == before_); }
  // Called before and after what is to be told from the rest.
  void notice_failed_call(Doing what) {
    if (!failed_ && !gpu_.failed_call().empty()) {
      failed_ = true;
      failed_while_ = what;
    }
  }
  void destroy() {
    notice_failed_call(Doing::anything);
    session_.reset();
    check_context();
    executable_.reset();
    check_context();
    mesh_.reset();
    check_context();
    notice_failed_call(Doing::destroying);
  }

  DriverDouble& gpu_;
  const Work& work_;
  const RankDescs ranks_;
  const std::vector<Context> before_;
  const std::vector<uint32_t> begin_, expected_;
  OnFailure on_failure_;
  std::unique_ptr<device::Mesh> mesh_;
  std::unique_ptr<device::Executable> executable_;
  std::unique_ptr<device::Session> session_;
  uint64_t value_ = 0;
  mkrt_trace_tile trace_[4];
  bool finished_ = false;
  bool failed_ = false;
  Doing failed_while_ = Doing::anything;
};

// One rank, ranks that share a GPU, ranks on two, and both.
const std::vector<std::vector<mkrt_rank_desc>> placements = {rank_descs({0}), rank_descs({0, 0}), rank_descs({0, 1}),
                                                             rank_descs({1, 0, 1})};

// Two GPUs; the application works on the second meanwhile, so that a call in its context shows.
struct Machine {
  explicit Machine(uint32_t ranks = 1) : work(4096, ranks), gpu(std::vector<SimulatedDevice>(2)) {
    gpu.add_isa(host::test::test_isa());
    gpu.push(gpu.create_context(1));
  }
  ~Machine() { gpu.pop(); }
  Work work;
  DriverDouble gpu;
};

// Calls without which all goes on: the library only gives back, or asks for what may be left out or done otherwise.
bool can_be_missed(const std::string& call) {
  static const std::set<std::string> calls = {
      "context_pop", "memory_free",  "host_free",      "stream_destroy", "module_unload", "primary_context_release",
      "memory_info", "memory_unmap", "memory_release", "address_free",   "host_register", "host_unregister"};
  return calls.count(call) != 0;
}

// Whether a failure of this call may be kept from the application. Every other must be the status of some step.
bool may_be_silent(const std::string& call, Scenario::Doing doing) {
  if (can_be_missed(call)) return true;
  // A context is made current for what gives back, too, and that does without. Whatever else came after it would be in
  // the wrong context, which the double sees.
  if (call == "context_push") return true;
  // The thread's mode goes back to what it was.
  if (call == "capture_mode") return true;
  // A cancel has no status. One that does not come through leaves the launch to its deadline, which the scenario looks
  // at.
  if (doing == Scenario::Doing::cancelling) return call == "copy_to_device";
  // Nobody is left to tell, and what cannot be waited for is over with its context.
  return doing == Scenario::Doing::destroying && call == "stream_synchronize";
}

void check_status(const StepOutcome& outcome, bool loading, Result injected) {
  const bool memory = loading && injected == result_out_of_memory;
  CHECK(outcome.status == (memory ? MKRT_ERROR_OUT_OF_MEMORY : MKRT_ERROR_DRIVER));
  CHECK(outcome.driver_code == injected);
}

}  // namespace

namespace {

// With `lent` the only rank is in the application's context, on its stream.
void fail_each_call_once(std::vector<mkrt_rank_desc> ranks, Result injected, bool lent = false) {
  Machine machine(static_cast<uint32_t>(ranks.size()));
  DriverDouble& gpu = machine.gpu;
  if (lent) {
    ranks.front().context = gpu.create_context(0);
    ranks.front().stream = gpu.create_stream(static_cast<Context>(ranks.front().context));
  }
  std::set<std::string> failed_calls;
  uint64_t number = 1;
  for (;; ++number) {
    CAPTURE(number);
    CAPTURE(injected);
    int failures = 0;
    Scenario scenario(gpu, machine.work, ranks);
    gpu.fail_call(number, injected);
    scenario.run([&](const char* step, bool loading, const StepOutcome& outcome) {
      CAPTURE(step);
      const std::string call = gpu.failed_call();
      CAPTURE(call);
      CHECK(++failures == 1);
      CHECK(!call.empty());
      CHECK(!can_be_missed(call));
      check_status(outcome, loading, injected);
      return true;
    });
    CHECK(gpu.live_objects() == 0);
    const std::vector<std::string> violations = gpu.take_violations();
    for (const std::string& violation : violations) FAIL_CHECK(violation);
    if (gpu.failed_call().empty()) break;  // there is no call of that number
    const std::string silent = failures == 0 ? gpu.failed_call() : "";
    CAPTURE(silent);
    CHECK((failures == 1 || may_be_silent(silent, scenario.failed_while())));
    failed_calls.insert(gpu.failed_call());
    if (!violations.empty()) break;
  }
  CHECK(number > 80 * ranks.size());
  CHECK(failed_calls.count("stream_query") == 1);
  // Kinds of calls, of the 37 that there are for one rank and 10 for several.
  CHECK(failed_calls.size() > (ranks.size() == 1 ? 25u : 33u));
  gpu.fail_none();
}

void fail_all_calls_after_each(RankDescs ranks) {
  Machine machine(static_cast<uint32_t>(ranks.size()));
  DriverDouble& gpu = machine.gpu;
  for (uint64_t number = 1;; ++number) {
    CAPTURE(number);
    Scenario scenario(gpu, machine.work, ranks);
    gpu.fail_call(number, some_failure, true);
    scenario.run([&](const char* step, bool loading, const StepOutcome& outcome) {
      CAPTURE(step);
      check_status(outcome, loading, some_failure);
      return false;
    });
    CHECK(gpu.live_objects() == 0);
    const std::vector<std::string> violations = gpu.take_violations();
    for (const std::string& violation : violations) FAIL_CHECK(violation);
    if (gpu.failed_call().empty() || !violations.empty()) break;
  }
  gpu.fail_none();
  Scenario(gpu, machine.work, ranks).run([](const char*, bool, const StepOutcome&) {
    FAIL_CHECK("the library does not work any more");
    return false;
  });
}

}  // namespace

TEST_CASE("whichever call fails once, the step says so, can be tried again, and nothing is lost") {
  for (const auto& ranks : placements) {
    CAPTURE(ranks.size());
    fail_each_call_once(ranks, some_failure);
    if (ranks.size() % 2 == 1) fail_each_call_once(ranks, result_out_of_memory);
  }
  fail_each_call_once(rank_descs({0}), some_failure, true);
}

TEST_CASE("whichever call is the last that works, everything that was taken is given back") {
  for (const auto& ranks : placements) {
    CAPTURE(ranks.size());
    fail_all_calls_after_each(ranks);
  }
}

namespace {

void fail_each_call_of_an_upload(DriverDouble& gpu) {
  const Work large(4'600'000);  // two blocks
  const auto mesh = make_mesh(gpu, rank_desc());
  for (uint64_t number = 1;; ++number) {
    gpu.fail_call(number, some_failure);
    const StepOutcome outcome = outcome_of([&](mkrt_error*) {
      mesh->load(large.program, {.loader_threads = 3});
      return MKRT_OK;
    });
    const std::string call = gpu.failed_call();
    CAPTURE(call);
    CHECK(gpu.live_objects() == 1);  // the mesh's context
    // No memory is given back while a copy still uses it.
    for (const std::string& violation : gpu.take_violations()) FAIL_CHECK(violation);
    if (call.empty()) {
      CHECK(outcome.status == MKRT_OK);
      break;
    }
    if (outcome.status != MKRT_OK) check_status(outcome, true, some_failure);
    // To make a context current is also what comes before giving back.
    if (outcome.status == MKRT_OK) CHECK((can_be_missed(call) || call == "context_push"));
  }
  gpu.fail_none();
}

}  // namespace

TEST_CASE("a failure on its way to the device ends the upload of all threads and gives their memory back") {
  Machine machine;
  for (const bool registers : {true, false}) {
    if (!registers) machine.gpu.forget("host_register");
    for (const bool slow : {false, true}) {
      machine.gpu.put_work_off(slow);
      fail_each_call_of_an_upload(machine.gpu);
    }
  }
}
