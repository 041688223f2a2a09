// An execute is one piece of work in all processes: what an application does before and after it is ordered with it.
#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "mkrt/mkrt.hpp"
#include "process.hpp"
#include "test_package.hpp"

namespace {

using namespace mkrt::test;
using namespace std::chrono_literals;

// A number that processes share and wait for.
class Stage {
 public:
  Stage() : word_(::mmap(nullptr, sizeof(Word), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(word_ != MAP_FAILED);
    new (word_) Word(0);
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage() { ::munmap(word_, sizeof(Word)); }
  void reach(int number) const { *static_cast<Word*>(word_) = number; }
  void wait_for(int number) const {
    while (*static_cast<Word*>(word_) < number) std::this_thread::sleep_for(100us);
  }

 private:
  using Word = std::atomic<int>;
  void* word_;
};

// What a process sees of its wait.
struct Seen {
  bool reached;
  uint32_t tiles;  // of this process that have begun
};
Seen look(mkrt::Session& session, uint64_t value) { return {session.wait_for(value, 20ms), test::gate_entered}; }

}  // namespace

TEST_CASE("no tile runs before all processes have begun, and nobody has ended before all have") {
  const test::TestPackage package(2);
  const std::string address = new_address();
  const Stage stage;
  const auto in_process = [&](uint32_t number, const Speaker& speaker) {
    const mkrt::Runtime runtime(package.runtime_desc());
    mkrt::Exchange exchange(runtime, address, number, 2);
    const mkrt_process_extension extension = exchange.extension();
    mkrt::RankOptions rank;
    rank.kind = MKRT_DEVICE_HOST;
    rank.worker_count = 2;
    const mkrt::Mesh mesh(runtime, mkrt::Span<const mkrt::RankOptions>(&rank, 1), &extension.base);
    exchange.close();  // the mesh keeps what it needs
    const mkrt::Program program(runtime, package.folder.path());
    const mkrt::Executable executable(program, mesh);
    mkrt::Session session(executable);
    mkrt::ExecuteOptions gate;
    gate.entry = test::entry_gate;
    if (number == 0) {
      const uint64_t value = session.execute(gate);
      speaker.say(look(session, value));  // the other has not begun
      stage.reach(1);
      stage.wait_for(2);
      while (test::gate_entered < 2) std::this_thread::sleep_for(100us);
      speaker.say(look(session, value));  // the other has not ended
      stage.reach(3);
      session.wait(value);
    } else {
      test::ClosedGate closed;
      stage.wait_for(1);
      const uint64_t value = session.execute(gate);
      closed.wait_until_entered();
      stage.reach(2);
      stage.wait_for(3);
      closed.open();
      session.wait(value);
    }
  };
  Process early([&](const Speaker& speaker) { in_process(0, speaker); });
  Process late([&](const Speaker& speaker) { in_process(1, speaker); });
  const Seen before = early.hear<Seen>();
  CHECK_FALSE(before.reached);
  CHECK(before.tiles == 0);
  const Seen between = early.hear<Seen>();
  CHECK_FALSE(between.reached);
  CHECK(between.tiles == 2);
  CHECK(early.ends_well());
  CHECK(late.ends_well());
}
