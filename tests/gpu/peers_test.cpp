// A GPU for each rank, and ranks that share the GPUs of a machine.
#include "moves.hpp"
#include "rank_checks.hpp"

using namespace mkrt::test;

TEST_CASE("a rank on each of two GPUs decode as one does, in both queue modes, on all, 16 and 1 SMs each") {
  check_rank_results(gpu_ranks(2, 2));
}

TEST_CASE("4 ranks on two GPUs, two on each, decode as one does") { check_rank_results(gpu_ranks(4, 2)); }

TEST_CASE("10 000 tokens in a row on two GPUs are the same every time, in both queue modes") {
  check_long_runs(gpu_ranks(2, 2));
}

TEST_CASE("copies, gathers and sums are right between two GPUs, for every type, size and number of SMs") {
  for (const uint32_t ranks : {2, 4}) check_moves(gpu_ranks(ranks, 2), 20'000);
}

TEST_CASE("records that move data follow each other across two GPUs and across steps") {
  for (const uint32_t ranks : {2, 4}) check_move_chain(gpu_ranks(ranks, 2), 20'000, 2'000);
}

TEST_CASE("a cancel and a fault stop the ranks of all GPUs, and a reset session works as a new one") {
  check_rank_failures(gpu_ranks(2, 2));
  check_rank_failures(gpu_ranks(4, 2));
}

TEST_CASE("sessions side by side on two GPUs never wait for each other, and give what each gives alone") {
  check_rank_sessions(gpu_ranks(2, 2));
}

TEST_CASE("meshes on two GPUs leave the memory of both as it was") { check_rank_memory(gpu_ranks(2, 2)); }

TEST_CASE("two ranks by default take a GPU each") {
  const mkrt::Runtime runtime;
  const mkrt::Mesh mesh(runtime, std::vector<mkrt::RankOptions>(2));
  CHECK(mesh.device_info(0).ordinal != mesh.device_info(1).ordinal);
}
