// Several ranks on one GPU, its SMs divided between them.
#include "moves.hpp"
#include "rank_checks.hpp"

using namespace mkrt::test;

TEST_CASE("2 and 4 ranks that share a GPU decode as one does, in both queue modes, on all, 16 and 1 SMs each") {
  for (const uint32_t ranks : {2, 4}) check_rank_results(gpu_ranks(ranks));
}

TEST_CASE("models of real shapes decode on 2 and 4 ranks that share a GPU as on one") {
  for (const char* shape : {"llama-3.2-1b", "qwen3-0.6b"}) {
    for (const uint32_t ranks : {2, 4}) {
      Target target = gpu_ranks(ranks);
      target.ways = {{MKRT_QUEUE_DYNAMIC, 0}, {MKRT_QUEUE_STATIC, 0}};
      check_against_one_rank(target, shape, 1);
    }
  }
}

TEST_CASE("10 000 tokens in a row on 2 ranks that share a GPU are the same every time, in both queue modes") {
  check_long_runs(gpu_ranks(2));
}

TEST_CASE("copies, gathers and sums are right on 1, 2, 3 and 4 ranks that share a GPU, for every type, size and SMs") {
  for (const uint32_t ranks : {1, 2, 3, 4}) check_moves(gpu_ranks(ranks), 20'000);
}

TEST_CASE("records that move data follow each other across ranks that share a GPU and across steps") {
  // Enough for pages to go round the ring many times.
  for (const uint32_t ranks : {1, 2, 4}) check_move_chain(gpu_ranks(ranks), 20'000, 2'000);
}

TEST_CASE("a tile may move more than 4 GB") { check_large_move(gpu_ranks(1)); }

TEST_CASE("a cancel and a fault stop all ranks that share a GPU, and a reset session works as a new one") {
  for (const uint32_t ranks : {2, 4}) check_rank_failures(gpu_ranks(ranks));
}

TEST_CASE("sessions side by side on 2 ranks that share a GPU give what each gives alone") {
  check_rank_sessions(gpu_ranks(2));
}

TEST_CASE("meshes of 2 ranks that share a GPU leave its memory as it was") { check_rank_memory(gpu_ranks(2)); }

TEST_CASE("ranks that share a GPU divide its SMs") {
  const mkrt::Runtime runtime;
  const uint32_t all = mkrt::Mesh(runtime, gpu().rank).device_info().worker_count;
  for (const uint32_t ranks : {2u, 3u, 4u}) {
    const mkrt::Mesh mesh(runtime, gpu_ranks(ranks).rank_options());
    CHECK(mesh.rank_count() == ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) CHECK(mesh.device_info(rank).worker_count == all / ranks);
  }
}
