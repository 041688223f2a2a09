// Decoding schedules as a compiler emits them, of real sizes: they pass, and nothing that orders them is superfluous.
#include "builder.hpp"

namespace mkrt::verify::test {
namespace {

struct Shape {
  uint32_t layers = 16, hidden = 2048, heads = 32, kv_heads = 8, head_size = 64, feed_forward = 8192;
  uint32_t vocabulary = 128256, context = 4096;
  uint32_t batch = 1, splits = 8, tile_rows = 16;
  uint32_t ranks = 1;                 // tensor parallel: heads, feed-forward and vocabulary are divided
  bool waits_by_head = true;          // attention of a head starts when that head's part of the product is there
  bool has_buffer_per_reduce = true;  // the two all-reduces of a layer use different buffers
};

class DecodeBuilder : public Builder {
 public:
  explicit DecodeBuilder(const Shape& shape) : Builder(shape.ranks), shape_(shape) {
    kv_heads_ = shape.kv_heads / shape.ranks;
    group_ = shape.heads / shape.kv_heads;
    qkv_rows_ = kv_heads_ * (group_ + 2) * shape.head_size;  // per key-value head: its query heads, key, value
    feed_forward_ = shape.feed_forward / shape.ranks;
    add_tensors();
    chosen_ = counter("chosen");
    embed();
    for (uint32_t layer = 0; layer < shape.layers; ++layer) add_layer("l" + std::to_string(layer) + ".");
    choose();
  }

 private:
  uint32_t tiles_of(uint32_t rows) const { return (rows + shape_.tile_rows - 1) / shape_.tile_rows; }

  void add_tensors() {
    const uint64_t batch = shape_.batch;
    tokens_ = tensor("tokens", batch * shape_.context, MKRT_TENSOR_STATE);
    position_ = tensor("position", batch, MKRT_TENSOR_STATE);
    rotation_ = tensor("rotation", batch * shape_.head_size);
    h_ = tensor("h", batch * shape_.hidden);
    qkv_ = tensor("qkv", batch * qkv_rows_);
    workspace_ = tensor("workspace", 3 * batch * kv_heads_ * shape_.splits * group_ * shape_.head_size);
    attended_ = tensor("attended", batch * kv_heads_ * group_ * shape_.head_size);
    activated_ = tensor("activated", batch * feed_forward_);
    parts_[0] = tensor("parts", shape_.ranks * batch * shape_.hidden);
    parts_[1] = shape_.has_buffer_per_reduce ? tensor("other parts", shape_.ranks * batch * shape_.hidden) : parts_[0];
    best_ = tensor("best", batch * shape_.ranks * tiles_of(shape_.vocabulary / shape_.ranks));
  }

  // All batch rows of a matrix with `columns` columns.
  Slice rows_of(uint32_t tensor, uint64_t columns) const {
    return {.tensor = tensor, .size = columns, .rows = shape_.batch, .row_stride = columns};
  }
  // A tile's columns of it; the last tile is cut.
  Slice tile_of(uint32_t tensor, uint64_t columns, uint64_t width) const {
    return {.tensor = tensor,
            .size = width,
            .strides = {width},
            .rows = shape_.batch,
            .row_stride = columns,
            .limit = columns};
  }

  void embed() {
    previous_ = counter("embedded");
    rotated_ = counter("rotated");
    const Slice own_position{.tensor = position_, .size = 1, .strides = {1}};
    record("embed", {shape_.batch}).wait({.counter = chosen_, .step = -1});
    read({.tensor = tokens_, .size = shape_.context, .strides = {shape_.context}}, "tokens").read(own_position);
    write({.tensor = h_, .size = shape_.hidden, .strides = {shape_.hidden}}, "out").signal({.counter = previous_});
    record("rotation", {shape_.batch}).wait({.counter = chosen_, .step = -1}).read(own_position);
    write({.tensor = rotation_, .size = shape_.head_size, .strides = {shape_.head_size}}, "out");
    signal({.counter = rotated_});
  }

  uint32_t weight(const std::string& name, uint32_t tiles, uint64_t columns) {
    return tensor(name, uint64_t{tiles} * shape_.tile_rows * columns, MKRT_TENSOR_WEIGHT);
  }

  Builder& linear(const std::string& label, uint32_t rows, uint32_t columns, uint32_t x) {
    const uint64_t tile_weights = uint64_t{shape_.tile_rows} * columns;
    const uint32_t w = weight(label + ".weight", tiles_of(rows), columns);
    record(label, {tiles_of(rows)}).read(rows_of(x, columns), "x");
    return read({.tensor = w, .size = tile_weights, .strides = {tile_weights}}, "weight");
  }

  void add_layer(const std::string& name) {
    add_qkv(name);
    add_attention(name);
    add_reduced(name + "o", kv_heads_ * group_ * shape_.head_size, attended_, 0);
    const uint32_t activated = counter(name + "activated");
    linear(name + "gate_up", 2 * feed_forward_, shape_.hidden, h_).wait({.counter = previous_});
    write(tile_of(activated_, feed_forward_, shape_.tile_rows / 2), "out").signal({.counter = activated});
    previous_ = activated;
    add_reduced(name + "down", feed_forward_, activated_, 1);
  }

  void add_qkv(const std::string& name) {
    // Where a head's rows are no whole number of tiles, one counter stands for all heads.
    const uint32_t head_rows = (group_ + 2) * shape_.head_size;
    by_head_ = shape_.waits_by_head && head_rows % shape_.tile_rows == 0;
    qkv_done_ = counter(name + "qkv", by_head_ ? kv_heads_ : 1);
    linear(name + "qkv", qkv_rows_, shape_.hidden, h_).wait({.counter = previous_});
    write(tile_of(qkv_, qkv_rows_, shape_.tile_rows), "out");
    signal({.counter = qkv_done_,
            .strides = {by_head_ ? 1u : 0u},
            .divide = {std::max(1u, head_rows / shape_.tile_rows), 1, 1, 1}});
  }

  void add_attention(const std::string& name) {
    const uint64_t size = shape_.head_size;
    const uint64_t head_rows = (group_ + 2) * size;
    const uint64_t cache_rows = size * shape_.context;
    const uint32_t cache = tensor(name + "k_cache", shape_.batch * kv_heads_ * cache_rows, MKRT_TENSOR_STATE);
    previous_ = counter(name + "attention");
    record(name + "attention", {shape_.batch, kv_heads_, shape_.splits});
    wait({.counter = qkv_done_, .strides = {0, by_head_ ? 1u : 0u}});
    if (name == "l0.") wait({.counter = rotated_});  // later layers follow the first one
    read({.tensor = position_, .size = 1, .strides = {1}}, "position");
    read({.tensor = rotation_, .size = size, .strides = {size}}, "rotation");
    read({.tensor = qkv_, .size = group_ * size, .strides = {qkv_rows_, head_rows}}, "q");
    read({.tensor = qkv_, .offset = group_ * size, .size = 2 * size, .strides = {qkv_rows_, head_rows}}, "kv");
    append({.tensor = cache, .size = cache_rows, .strides = {kv_heads_ * cache_rows, cache_rows}}, {2}, "k_cache");
    const uint64_t out = group_ * size;
    const uint64_t workspace = 3 * shape_.splits * out;
    append({.tensor = attended_, .size = out, .strides = {kv_heads_ * out, out}}, {2}, "out");
    append({.tensor = workspace_, .size = workspace, .strides = {kv_heads_ * workspace, workspace}}, {2}, "workspace");
    signal({.counter = previous_});
  }

  // A product added to h in place; with several ranks, their parts are pushed to all and summed there.
  void add_reduced(const std::string& name, uint32_t columns, uint32_t x, uint32_t which) {
    const uint32_t done = counter(name);
    linear(name, shape_.hidden, columns, x).wait({.counter = previous_});
    const Slice h_tile = tile_of(h_, shape_.hidden, shape_.tile_rows);
    if (shape_.ranks == 1) {
      read(h_tile, "residual").write(h_tile, "out").signal({.counter = done});
      previous_ = done;
      return;
    }
    Slice part = tile_of(parts_[which], shape_.hidden, shape_.tile_rows);
    part.rank_stride = uint64_t{shape_.batch} * shape_.hidden;
    part.rank = kAll;
    write(part, "out").signal({.counter = done, .rank = kAll});
    previous_ = counter(name + ".sum");
    record(name + ".sum", {tiles_of(shape_.hidden)}).wait({.counter = done});
    Slice parts = tile_of(parts_[which], shape_.hidden, shape_.tile_rows);
    parts.rows *= shape_.ranks;
    read(parts, "parts").operand(Access::read_write, h_tile, "h").signal({.counter = previous_});
  }

  void choose() {
    const uint32_t tiles = tiles_of(shape_.vocabulary / shape_.ranks);
    const uint64_t best_columns = uint64_t{tiles} * shape_.ranks;
    const uint32_t head = counter("head");
    linear("head", shape_.vocabulary / shape_.ranks, shape_.hidden, h_).wait({.counter = previous_});
    write({.tensor = best_,
           .size = 1,
           .strides = {1},
           .rows = shape_.batch,
           .row_stride = best_columns,
           .rank_stride = tiles,
           .rank = shape_.ranks == 1 ? kSelf : kAll},
          "best");
    signal({.counter = head, .rank = shape_.ranks == 1 ? kSelf : kAll});
    record("choose", {shape_.batch}).wait({.counter = head});
    read({.tensor = best_, .size = best_columns, .strides = {best_columns}}, "best");
    operand(Access::read_write, {.tensor = tokens_, .size = shape_.context, .strides = {shape_.context}}, "tokens");
    operand(Access::read_write, {.tensor = position_, .size = 1, .strides = {1}}, "position");
    signal({.counter = chosen_});
  }

  Shape shape_;
  uint32_t kv_heads_, group_, qkv_rows_, feed_forward_;
  uint32_t tokens_ = 0, position_ = 0, rotation_ = 0, h_ = 0, qkv_ = 0, workspace_ = 0, attended_ = 0, activated_ = 0,
           best_ = 0;
  std::array<uint32_t, 2> parts_{};
  uint32_t chosen_ = 0, rotated_ = 0, previous_ = 0, qkv_done_ = 0;
  bool by_head_ = false;
};

Shape small_shape() {
  Shape shape;
  shape.layers = 2, shape.hidden = 172, shape.heads = 6, shape.kv_heads = 2, shape.head_size = 32;
  shape.feed_forward = 200, shape.vocabulary = 1003, shape.context = 64, shape.splits = 3;
  return shape;
}

Shape shape_8b() {
  Shape shape;
  shape.layers = 32, shape.hidden = 4096, shape.head_size = 128, shape.feed_forward = 14336;
  return shape;
}

TEST_CASE("a 1B model's decoding schedule passes") {
  DecodeBuilder builder{Shape{}};
  CHECK(builder.entry().tile_count > 30000);
  CHECK_NOTHROW(check(builder.program()));
  for (const package::Record& record : builder.entry().records) {
    for (const package::Wait& wait : record.waits) CHECK(wait.step_total > 0);
  }
}

TEST_CASE("decoding schedules of many shapes pass") {
  for (uint32_t batch : {1, 3, 16}) {
    for (uint32_t tile_rows : {8, 16, 32}) {
      for (bool by_head : {true, false}) {
        Shape shape = small_shape();
        shape.batch = batch, shape.tile_rows = tile_rows, shape.waits_by_head = by_head;
        INFO("batch " << batch << ", tile rows " << tile_rows << ", by head " << by_head);
        CHECK_NOTHROW(check(DecodeBuilder(shape).program()));
      }
    }
  }
}

TEST_CASE("an 8B model's schedule on eight ranks passes") {
  Shape shape = shape_8b();
  shape.ranks = 8;
  DecodeBuilder builder(shape);
  CHECK_NOTHROW(check(builder.program()));
}

TEST_CASE("all-reduces that follow each other through one buffer are refused") {
  Shape shape = small_shape();
  shape.ranks = 2;
  CHECK_NOTHROW(check(DecodeBuilder(shape).program()));
  shape.has_buffer_per_reduce = false;
  const Refusal found = refusal(DecodeBuilder(shape).program());
  CHECK_MESSAGE(contains(found.message, "tensor \"parts\""), found.message);
  CHECK_MESSAGE(contains(found.message, ".sum"), found.message);
}

TEST_CASE("every wait of a decoding schedule is needed, in full") {
  for (uint32_t ranks : {1, 2}) {
    Shape shape = small_shape();
    shape.ranks = ranks;
    const DecodeBuilder whole(shape);
    DecodeBuilder builder = whole;
    for (size_t r = 0; r < builder.entry().records.size(); ++r) {
      for (size_t w = 0; w < builder.entry().records[r].waits.size(); ++w) {
        INFO("record " << r << ", wait " << w);
        builder = whole;
        builder.entry().records[r].waits.erase(builder.entry().records[r].waits.begin() + static_cast<long>(w));
        CHECK_THROWS_AS(check(builder.program()), base::Failure);
        builder = whole;
        check(builder.program());
        package::Wait& wait = builder.entry().records[r].waits[w];
        if (wait.step_total == 1) continue;
        wait.value = wait.step_total - 1;
        CHECK_THROWS_AS(check(builder.program()), base::Failure);
      }
    }
  }
}

TEST_CASE("a decoding schedule whose tiles write one element more is refused") {
  // Writes one element further: a race with the neighbour tile, or out of bounds.
  const DecodeBuilder whole(small_shape());
  DecodeBuilder builder = whole;
  uint32_t changed = 0;
  for (size_t r = 0; r < builder.entry().records.size(); ++r) {
    for (size_t o = 0; o < builder.entry().records[r].operands.size(); ++o) {
      builder = whole;
      package::Record& record = builder.entry().records[r];
      if (builder.program().isa.opcodes[record.opcode].operands[o].access == Access::read) continue;
      if (record.tile_count == 1) continue;
      INFO("record " << r << ", operand " << o);
      record.operands[o]->size += 1;
      record.operands[o]->limit += 1;
      CHECK_THROWS_AS(check(builder.program()), base::Failure);
      ++changed;
    }
  }
  CHECK(changed > 10);
}

}  // namespace
}  // namespace mkrt::verify::test
