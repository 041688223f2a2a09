#include "compile/lower.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <optional>
#include <utility>

#include "base/failure.hpp"

namespace mkrt::compile {
namespace {

using package::Dtype;
using package::Operand;
using package::Record;

// Tiles that run at the same time on a large device, which has 108 to 148 SMs. A decoder's smaller matrices are cut
// into so many, and attention is split into about as many: one pass, no second one in which most SMs are idle.
constexpr uint64_t kTilesAtOnce = 128;
// What consumers keep sums of at a time; a larger tile would be worked on in several pieces.
constexpr uint32_t kMostTileRows = 32;
// Larger tiles mean fewer numbers from the queue, fewer signals and fewer candidates for `choose`. That is worth one
// part in so many of more rows for the busiest SM.
constexpr uint64_t kRowsForLargerTiles = 32;

// A split of fewer positions than this costs more when parts are joined than it saves: at a full context, 64 rows of a
// cache are 8 KB for 64-element heads, the smallest piece that memory delivers at nearly full rate.
constexpr uint64_t kSmallestSplit = 64;

// Elements that a tile of sum_partials adds up, all sequences together: one for each thread of a GPU's consumers, so
// that a tile lasts as long as one look at memory. At least a whole sector's neighbours, 32, of each sequence.
constexpr uint64_t kSumElements = 256;
constexpr uint64_t kSumColumns = 32;

// A host may give more stop tokens than the model has: eight places at least.
constexpr uint64_t kStopTokens = 8;

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

uint32_t parameter(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t parameter(float value) { return std::bit_cast<uint32_t>(value); }

// Rows that the busiest SM has of a matrix in tiles of `tile_rows`.
uint64_t busiest_rows(uint64_t rows, uint64_t tile_rows) {
  const uint64_t tiles = (rows + tile_rows - 1) / tile_rows;
  return (tiles + kTilesAtOnce - 1) / kTilesAtOnce * tile_rows;
}

// Rows of a tile, a multiple of `step`: such that the busiest SM has few, because the record after waits for it. 3072
// rows in tiles of 16 would give some SMs two and others one; in tiles of 24 each has one.
uint32_t tile_rows_of(const Choices& choices, uint64_t rows, uint32_t step) {
  if (choices.tile_rows != 0) return choices.tile_rows;
  uint64_t fewest = UINT64_MAX;
  for (uint32_t tile_rows = step; tile_rows <= kMostTileRows; tile_rows += step) {
    fewest = std::min(fewest, busiest_rows(rows, tile_rows));
  }
  uint32_t largest = step;
  for (uint32_t tile_rows = step; tile_rows <= kMostTileRows; tile_rows += step) {
    if (busiest_rows(rows, tile_rows) <= fewest + fewest / kRowsForLargerTiles) largest = tile_rows;
  }
  return largest;
}

// Sizes of one rank's part of the model. Lowering takes these sizes from nowhere else.
struct Shape {
  Shape(const ModelDescription& model, const Choices& choices, const Split& split)
      : ranks(choices.ranks),
        batch(choices.batch),
        context(choices.context),
        hidden(model.hidden),
        feed_forward(split.feed_forward()),
        vocabulary(model.vocabulary),
        kv_heads(split.kv_heads()),
        group(split.group()),
        head_size(model.head_size),
        embedding_columns(split.embedding_columns()) {
    const uint64_t heads_tiles = batch * kv_heads;
    const uint64_t wanted = std::min(kTilesAtOnce / std::min(heads_tiles, kTilesAtOnce), context / kSmallestSplit);
    splits = choices.splits ? choices.splits : std::max<uint64_t>(wanted, 1);
  }

  bool several_ranks() const { return ranks > 1; }
  uint64_t q_rows() const { return kv_heads * group * head_size; }
  uint64_t k_rows() const { return kv_heads * head_size; }
  uint64_t qkv_rows() const { return q_rows() + 2 * k_rows(); }
  // What the splits of a head hand to each other; the instruction set says how much that is.
  uint64_t workspace_size() const { return splits * group * round_up(head_size, 16) * 3; }
  // Of a sequence's row of the hidden state, which has room for the columns of all ranks' token tables.
  uint64_t hidden_stride() const { return ranks * embedding_columns; }
  uint64_t sum_columns() const { return std::max(kSumElements / batch / kSumColumns, uint64_t{1}) * kSumColumns; }

  uint64_t ranks, batch, context, hidden, feed_forward, vocabulary, kv_heads, group, head_size, embedding_columns;
  uint64_t splits = 1;
};

// Builds one record after the other; operands and parameters are found by their names in the ISA.
class Schedule {
 public:
  Schedule(package::IsaDefinition isa, uint32_t ranks) {
    program_.rank_count = ranks;
    program_.isa = std::move(isa);
    program_.entries.emplace_back().name = "decode";
  }

  uint32_t tensor(std::string name, Dtype dtype, std::vector<uint64_t> shape, uint32_t kind) {
    package::Tensor& tensor = program_.tensors.emplace_back();
    tensor.name = std::move(name);
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.kind = kind;
    tensor.elements = 1;
    for (const uint64_t size : tensor.shape) tensor.elements *= size;
    tensor.size_bytes = tensor.elements * package::dtype_size(dtype);
    return static_cast<uint32_t>(program_.tensors.size() - 1);
  }

  // A counter of its own name, to be signalled by one record, or by several that the same ones wait for.
  uint32_t counter(std::string name) {
    package::Entry& entry = program_.entries.front();
    entry.counters.push_back({.name = std::move(name), .first = entry.counter_count, .size = 1});
    return entry.counter_count++;
  }

  void begin(const char* opcode, std::string label, std::vector<uint64_t> grid) {
    package::Entry& entry = program_.entries.front();
    const auto& opcodes = program_.isa.opcodes;
    const auto found = std::ranges::find(opcodes, std::string(opcode), &package::OpcodeDefinition::name);
    assert(found != opcodes.end());
    definition_ = &*found;
    Record& record = entry.records.emplace_back();
    record.opcode = static_cast<uint32_t>(found - opcodes.begin());
    record.label = std::move(label);
    record.dimensions = static_cast<uint32_t>(grid.size());
    for (size_t d = 0; d < grid.size(); ++d) {
      record.grid[d] = static_cast<uint32_t>(grid[d]);
      record.tile_count *= grid[d];
    }
    record.first_tile = entry.tile_count;
    entry.tile_count += record.tile_count;
    record.operands.resize(found->operands.size());
    record.parameters.resize(found->parameters.size());
  }

  template <class Value>
  void set(const char* name, Value value) {
    const auto found =
        std::ranges::find(definition_->parameters, std::string(name), &package::ParameterDefinition::name);
    assert(found != definition_->parameters.end());
    record().parameters[found - definition_->parameters.begin()] = parameter(value);
  }

  // The slice's rows end with the part's last element where `limit` is given: the ragged end of a matrix's rows.
  // In a program of several ranks, `rank_stride` moves it for each, and `everywhere` has it written at all.
  struct Slice {
    uint64_t offset = 0;
    uint64_t size = 0;
    std::vector<uint64_t> strides = {};
    uint64_t rows = 1;
    uint64_t row_stride = 0;
    uint64_t limit = 0;
    uint64_t rank_stride = 0;
    bool everywhere = false;
  };
  void operand(const char* name, uint32_t tensor, const Slice& slice) {
    const auto found = std::ranges::find(definition_->operands, std::string(name), &package::OperandDefinition::name);
    assert(found != definition_->operands.end());
    Operand operand{.tensor = tensor, .offset = slice.offset, .size = slice.size};
    uint64_t largest = slice.size;
    for (size_t d = 0; d < slice.strides.size(); ++d) {
      operand.strides[d] = slice.strides[d];
      largest += (record().grid[d] - 1) * slice.strides[d];
    }
    operand.limit = slice.limit ? slice.limit : largest;
    operand.rows = static_cast<uint32_t>(slice.rows);
    operand.row_stride = slice.row_stride;
    if (program_.rank_count > 1) operand.rank_stride = slice.rank_stride;
    if (slice.everywhere) operand.rank = everywhere();
    record().operands[found - definition_->operands.begin()] = operand;
  }
  void whole(const char* name, uint32_t tensor) { operand(name, tensor, {.size = program_.tensors[tensor].elements}); }

  void wait(uint32_t counter, int32_t step = 0) {
    record().waits.push_back({.counter = counter, .array = counter, .step_offset = step});
  }
  void signal(uint32_t counter) { record().signals.push_back({.counter = counter, .array = counter}); }
  void signal_everywhere(uint32_t counter) {
    record().signals.push_back({.counter = counter, .array = counter, .rank = everywhere()});
  }

  package::Program take() { return std::move(program_); }

 private:
  Record& record() { return program_.entries.front().records.back(); }
  mkrt_rank_selector everywhere() const {
    return {static_cast<uint8_t>(program_.rank_count > 1 ? MKRT_RANK_ALL : MKRT_RANK_SELF), 0xff, 0};
  }

  package::Program program_;
  const package::OpcodeDefinition* definition_ = nullptr;
};

// What a weight takes of one dimension of a tensor of the checkpoint: a number means all of it. One share: the same for
// every rank, so that all have one tensor. Several: one for each rank.
struct Cut {
  Cut(uint64_t whole_size) : size(whole_size), shares{whole(whole_size)} {}
  Cut(uint64_t whole_size, Shares rank_shares) : size(whole_size), shares(std::move(rank_shares)) {}
  const Share& of(uint64_t rank) const { return shares.size() == 1 ? shares.front() : shares[rank]; }

  uint64_t size;
  Shares shares;
};
struct Part {
  std::string source;
  Cut rows;
};

// A packed matrix of the package, as the instructions address it.
struct Matrix {
  uint32_t tensor = 0;
  uint64_t rows = 0;  // without padding
  uint64_t columns = 0;
  uint64_t tile_rows = 0;

  uint64_t tiles() const { return (rows + tile_rows - 1) / tile_rows; }
  uint64_t tile_elements() const { return tile_rows * round_up(columns, kBlockColumns); }
};

struct Layer {
  uint32_t attention_norm, feed_forward_norm;
  std::optional<uint32_t> q_norm, k_norm, qkv_bias, output_bias;
  Matrix qkv, output, gate_up, down;
  uint32_t k_cache, v_cache;
};

class Lowering {
 public:
  Lowering(const ModelDescription& model, const Choices& choices, package::IsaDefinition isa)
      : model_(model),
        choices_(choices),
        split_(model, choices.ranks),
        shape_(model, choices, split_),
        schedule_(std::move(isa), choices.ranks) {}

  Plan run() {
    declare_tensors();
    emit_begin();
    for (uint64_t i = 0; i < model_.layers; ++i) emit_layer(i, declare_layer(i));
    emit_end();
    // Matrices first: every one of them then starts at a multiple of its blocks' 512 bytes in the weight file.
    std::ranges::stable_partition(weights_, &Weight::is_matrix);
    return {schedule_.take(), std::move(weights_), std::move(sources_)};
  }

 private:
  // --- tensors -------------------------------------------------------------------------------------------------

  uint32_t scratch(std::string name, std::vector<uint64_t> shape, Dtype dtype = Dtype::f32) {
    return schedule_.tensor(std::move(name), dtype, std::move(shape), MKRT_TENSOR_SCRATCH);
  }

  void declare_tensors() {
    const Shape& s = shape_;
    tokens_ = schedule_.tensor("tokens", Dtype::i32, {s.batch, s.context}, MKRT_TENSOR_STATE);
    positions_ = schedule_.tensor("positions", Dtype::i32, {s.batch}, MKRT_TENSOR_STATE);
    active_ = schedule_.tensor("active", Dtype::i32, {s.batch}, MKRT_TENSOR_STATE);
    prompt_length_ = schedule_.tensor("prompt_length", Dtype::i32, {s.batch}, MKRT_TENSOR_INPUT);
    const uint64_t stop_tokens = std::max<uint64_t>(kStopTokens, model_.eos_tokens.size());
    stop_tokens_ = schedule_.tensor("stop_tokens", Dtype::i32, {stop_tokens}, MKRT_TENSOR_INPUT);
    stop_count_ = schedule_.tensor("stop_count", Dtype::i32, {1}, MKRT_TENSOR_INPUT);
    logits_ = schedule_.tensor("logits", Dtype::f32, {s.batch, s.vocabulary}, MKRT_TENSOR_OUTPUT);

    h_ = scratch("h", {s.batch, s.hidden_stride()});
    rotation_ = scratch("rotation", {s.batch, s.head_size});
    qkv_ = scratch("qkv", {s.batch, s.qkv_rows()});
    attention_ = scratch("attention", {s.batch, s.q_rows()});
    feed_forward_ = scratch("feed_forward", {s.batch, s.feed_forward});
    attention_workspace_ = scratch("attention.workspace", {s.batch, s.kv_heads, s.workspace_size()});
    if (s.several_ranks()) {
      attention_parts_ = scratch("o.parts", {s.ranks, s.batch, s.hidden});
      feed_forward_parts_ = scratch("down.parts", {s.ranks, s.batch, s.hidden});
    }
    embedding_ =
        matrix("embedding", {{"model.embed_tokens.weight", s.vocabulary}}, {s.hidden, split_.embedding_shares()});
    frequencies_ = vector("rope_frequencies", {}, rope_frequencies(model_));
  }

  Layer declare_layer(uint64_t index) {
    const Shape& s = shape_;
    const std::string in = base::text("model.layers.", index, ".");
    const std::string out = base::text("l", index, ".");
    const auto norm = [&](const char* name, const char* source, uint64_t size) {
      return vector(out + name, {{in + source + ".weight", size}});
    };
    const Cut q{model_.heads * s.head_size, scaled(split_.query_head_shares(), s.head_size)};
    const Cut k{model_.kv_heads * s.head_size, scaled(split_.kv_head_shares(), s.head_size)};
    const Cut feed_forward{model_.feed_forward, split_.feed_forward_shares()};
    const auto qkv = [&](const char* what) {
      return std::vector<Part>{{in + "self_attn.q_proj." + what, q},
                               {in + "self_attn.k_proj." + what, k},
                               {in + "self_attn.v_proj." + what, k}};
    };

    Layer layer{};
    layer.attention_norm = norm("attention_norm", "input_layernorm", s.hidden);
    layer.qkv = matrix(out + "qkv.weight", qkv("weight"), s.hidden);
    if (model_.qkv_bias) layer.qkv_bias = vector(out + "qkv.bias", qkv("bias"));
    if (model_.per_head_norm) {
      layer.q_norm = norm("q_norm", "self_attn.q_norm", s.head_size);
      layer.k_norm = norm("k_norm", "self_attn.k_norm", s.head_size);
    }
    layer.output = matrix(out + "o.weight", {{in + "self_attn.o_proj.weight", s.hidden}}, q);
    if (model_.output_bias) layer.output_bias = vector(out + "o.bias", {{in + "self_attn.o_proj.bias", first_only()}});
    layer.feed_forward_norm = norm("feed_forward_norm", "post_attention_layernorm", s.hidden);
    layer.gate_up = matrix(out + "gate_up.weight",
                           {{in + "mlp.gate_proj.weight", feed_forward}, {in + "mlp.up_proj.weight", feed_forward}},
                           s.hidden, Weight::Layout::interleaved);
    layer.down = matrix(out + "down.weight", {{in + "mlp.down_proj.weight", s.hidden}}, feed_forward);

    const std::vector<uint64_t> cache{s.batch, s.kv_heads, s.context, s.head_size};
    layer.k_cache = schedule_.tensor(out + "k_cache", Dtype::f16, cache, MKRT_TENSOR_STATE);
    layer.v_cache = schedule_.tensor(out + "v_cache", Dtype::f16, cache, MKRT_TENSOR_STATE);
    return layer;
  }

  // A bias of what ranks add up: the first one's, zeros at the others.
  Cut first_only() const {
    Shares shares(shape_.ranks, Share{0, 0, shape_.hidden});
    shares.front() = whole(shape_.hidden);
    return {shape_.hidden, std::move(shares)};
  }

  Matrix matrix(const std::string& name, const std::vector<Part>& parts, const Cut& columns,
                Weight::Layout layout = Weight::Layout::matrix) {
    Matrix matrix{.columns = columns.of(0).size};
    for (const Part& part : parts) matrix.rows += part.rows.of(0).size;
    // Gate and up end together, with a block each.
    const bool interleaved = layout == Weight::Layout::interleaved;
    if (interleaved) matrix.rows = 2 * round_up(parts[0].rows.of(0).size, kBlockRows);
    matrix.tile_rows = tile_rows_of(choices_, matrix.rows, interleaved ? 2 * kBlockRows : kBlockRows);
    matrix.tensor = weight(name, layout, parts, columns, matrix.tile_rows, {});
    return matrix;
  }

  uint32_t vector(const std::string& name, const std::vector<Part>& parts, const std::vector<float>& values = {}) {
    const Weight::Layout layout = parts.empty() ? Weight::Layout::values : Weight::Layout::vector;
    return weight(name, layout, parts, 1, 1, values);
  }

  // One weight for all ranks where all take the same, otherwise one for each.
  uint32_t weight(const std::string& name, Weight::Layout layout, const std::vector<Part>& parts, const Cut& columns,
                  uint64_t tile_rows, const std::vector<float>& values) {
    bool shared = columns.shares.size() == 1;
    for (const Part& part : parts) shared = shared && part.rows.shares.size() == 1;
    for (uint32_t rank = 0; rank < (shared ? 1 : shape_.ranks); ++rank) {
      Weight one{name, layout, {}, columns.size, columns.of(rank), tile_rows, values, {}};
      for (const Part& part : parts) one.sources.push_back({part.source, part.rows.size, part.rows.of(rank)});
      if (!shared) {
        one.rank = rank;
        one.name = base::text("rank", rank, ".", name);
      }
      weights_.push_back(std::move(one));
    }
    sources_.push_back(shared ? name : "rank{rank}." + name);
    return schedule_.tensor(name, weights_.back().dtype(), weights_.back().shape(), MKRT_TENSOR_WEIGHT);
  }

  // --- records -------------------------------------------------------------------------------------------------

  // What all three kinds of matrix product share: input rows, norm, the tile's piece of the matrix.
  void begin_linear(const char* opcode, std::string label, const Matrix& matrix, uint32_t x,
                    std::optional<uint32_t> norm) {
    const uint64_t x_stride = x == h_ ? shape_.hidden_stride() : matrix.columns;
    schedule_.begin(opcode, std::move(label), {matrix.tiles()});
    schedule_.set("columns", matrix.columns);
    schedule_.set("batch", shape_.batch);
    schedule_.set("tile_rows", matrix.tile_rows);
    schedule_.set("epsilon", model_.epsilon);
    schedule_.operand("x", x, {.size = matrix.columns, .rows = shape_.batch, .row_stride = x_stride});
    if (norm) schedule_.whole("norm", *norm);
    schedule_.operand("weight", matrix.tensor, {.size = matrix.tile_elements(), .strides = {matrix.tile_elements()}});
  }

  // The tile's rows of an activation that has `columns` values a sequence.
  void tile_rows(const char* name, uint32_t tensor, uint64_t size, uint64_t columns) {
    schedule_.operand(name, tensor,
                      {.size = size, .strides = {size}, .rows = shape_.batch, .row_stride = columns, .limit = columns});
  }

  void tile_bias(const Matrix& matrix, uint32_t bias) {
    schedule_.operand("bias", bias, {.size = matrix.tile_rows, .strides = {matrix.tile_rows}, .limit = matrix.rows});
  }

  // One element of an i32 tensor for each sequence, the first dimension of the grid.
  void of_sequence(const char* name, uint32_t tensor, uint64_t size = 1) {
    schedule_.operand(name, tensor, {.size = size, .strides = {size}});
  }

  // Ends a record that signals a counter of its own, and has the next one wait for it.
  void end(std::string counter) {
    previous_ = schedule_.counter(std::move(counter));
    schedule_.signal(previous_);
  }
  // The same where the record wrote at every rank.
  void end_everywhere(std::string counter) {
    previous_ = schedule_.counter(std::move(counter));
    schedule_.signal_everywhere(previous_);
  }

  void emit_begin() {
    const Shape& s = shape_;
    chosen_ = schedule_.counter("chosen");
    schedule_.begin("rotation", "rotation", {s.batch});
    of_sequence("position", positions_);
    schedule_.whole("frequencies", frequencies_);
    of_sequence("out", rotation_, s.head_size);
    schedule_.wait(chosen_, -1);
    end("rotation");
    rotated_ = previous_;

    schedule_.begin("embed", "embed", {s.batch});
    schedule_.set("vocabulary", s.vocabulary);
    schedule_.set("columns", s.embedding_columns);
    of_sequence("tokens", tokens_, s.context);
    of_sequence("position", positions_);
    schedule_.whole("table", embedding_.tensor);
    // Each rank has some columns of the table, and gives them to all.
    schedule_.operand("out", h_,
                      {.size = s.embedding_columns,
                       .strides = {s.hidden_stride()},
                       .rank_stride = s.embedding_columns,
                       .everywhere = true});
    schedule_.wait(chosen_, -1);
    end_everywhere("embed");
  }

  void emit_layer(uint64_t index, const Layer& layer) {
    const std::string name = base::text("l", index, ".");
    emit_qkv(name + "qkv", layer);
    emit_attention(name + "attention", layer, index == 0);
    emit_residual(name + "o", layer.output, attention_, layer.output_bias, attention_parts_);
    emit_gate_up(name + "gate_up", layer);
    emit_residual(name + "down", layer.down, feed_forward_, std::nullopt, feed_forward_parts_);
  }

  void emit_qkv(std::string name, const Layer& layer) {
    begin_linear("linear", name, layer.qkv, h_, layer.attention_norm);
    if (layer.qkv_bias) tile_bias(layer.qkv, *layer.qkv_bias);
    tile_rows("out", qkv_, layer.qkv.tile_rows, layer.qkv.rows);
    schedule_.wait(previous_);
    end(std::move(name));
  }

  void emit_attention(std::string name, const Layer& layer, bool first) {
    const Shape& s = shape_;
    schedule_.begin("attention", name, {s.batch, s.kv_heads, s.splits});
    schedule_.set("group", s.group);
    schedule_.set("head_size", s.head_size);
    schedule_.set("context", s.context);
    schedule_.set("splits", s.splits);
    schedule_.set("scale", static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_size))));
    schedule_.set("epsilon", model_.epsilon);
    const uint64_t q_size = s.group * s.head_size;
    const auto head = [&](const char* operand, uint64_t offset, uint64_t size) {
      schedule_.operand(operand, qkv_, {.offset = offset, .size = size, .strides = {s.qkv_rows(), size}});
    };
    of_sequence("position", positions_);
    of_sequence("rotation", rotation_, s.head_size);
    head("q", 0, q_size);
    head("k", s.q_rows(), s.head_size);
    head("v", s.q_rows() + s.k_rows(), s.head_size);
    if (layer.q_norm) schedule_.whole("q_norm", *layer.q_norm);
    if (layer.k_norm) schedule_.whole("k_norm", *layer.k_norm);
    const uint64_t cache = s.context * s.head_size;
    // A head's splits share these.
    const auto head_of_sequence = [&](const char* operand, uint32_t tensor, uint64_t size) {
      schedule_.operand(operand, tensor, {.size = size, .strides = {s.kv_heads * size, size}});
    };
    head_of_sequence("k_cache", layer.k_cache, cache);
    head_of_sequence("v_cache", layer.v_cache, cache);
    head_of_sequence("out", attention_, q_size);
    head_of_sequence("workspace", attention_workspace_, s.workspace_size());
    schedule_.wait(previous_);
    // The angles of a step hold for all layers; what comes after the first layer comes after this wait.
    if (first) schedule_.wait(rotated_);
    end(std::move(name));
  }

  // h += W x. One rank updates the residual stream in place; a tile reads only the values that it writes. Of several,
  // each has some columns of W: it writes its part of the sum at every rank, and each adds all parts up.
  void emit_residual(std::string name, const Matrix& matrix, uint32_t x, std::optional<uint32_t> bias, uint32_t parts) {
    const Shape& s = shape_;
    begin_linear("linear", name, matrix, x, std::nullopt);
    if (bias) tile_bias(matrix, *bias);
    schedule_.wait(previous_);
    if (!s.several_ranks()) {
      tile_rows("residual", h_, matrix.tile_rows, s.hidden);
      tile_rows("out", h_, matrix.tile_rows, s.hidden);
      return end(std::move(name));
    }
    schedule_.operand("out", parts,
                      {.size = matrix.tile_rows,
                       .strides = {matrix.tile_rows},
                       .rows = s.batch,
                       .row_stride = s.hidden,
                       .limit = s.hidden,
                       .rank_stride = s.batch * s.hidden,
                       .everywhere = true});
    end_everywhere(name);
    emit_sum(name + ".sum", parts);
  }

  void emit_sum(std::string name, uint32_t parts) {
    const Shape& s = shape_;
    const uint64_t columns = s.sum_columns();
    schedule_.begin("sum_partials", name, {(s.hidden + columns - 1) / columns});
    schedule_.set("parts", s.ranks);
    schedule_.set("batch", s.batch);
    const auto rows = [&](const char* operand, uint32_t tensor, uint64_t count, uint64_t stride) {
      schedule_.operand(
          operand, tensor,
          {.size = columns, .strides = {columns}, .rows = count, .row_stride = stride, .limit = s.hidden});
    };
    rows("partial", parts, s.ranks * s.batch, s.hidden);
    rows("residual", h_, s.batch, s.hidden_stride());
    rows("out", h_, s.batch, s.hidden_stride());
    schedule_.wait(previous_);
    end(std::move(name));
  }

  void emit_gate_up(std::string name, const Layer& layer) {
    begin_linear("linear_swiglu", name, layer.gate_up, h_, layer.feed_forward_norm);
    tile_rows("out", feed_forward_, layer.gate_up.tile_rows / 2, shape_.feed_forward);
    schedule_.wait(previous_);
    end(std::move(name));
  }

  // Each rank has rows of the head and gives every rank their logits and its tiles' best ones, so that all choose
  // alike. Whole tiles are shared out evenly. The few rows that are left over every rank computes for itself; their
  // candidates are pushed like all others, so that ranks of different devices, which may round differently, still
  // choose alike.
  void emit_end() {
    const Shape& s = shape_;
    const uint32_t norm = vector("final_norm", {{"model.norm.weight", s.hidden}});
    const std::string source = model_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    const uint64_t tile = tile_rows_of(choices_, s.vocabulary / s.ranks, kBlockRows);
    const Share share = split_.vocabulary_shares(tile).front();
    const Share rest = split_.vocabulary_rest(tile);
    std::optional<Matrix> head, left_over;
    if (model_.tied_embeddings && !s.several_ranks()) {
      head = embedding_;
    } else if (share.size != 0) {
      head = matrix("head.weight", {{source, {s.vocabulary, split_.vocabulary_shares(tile)}}}, s.hidden);
    }
    if (rest.size != 0) left_over = matrix("head.rest.weight", {{source, {s.vocabulary, {rest}}}}, s.hidden);
    const uint64_t tiles = head ? head->tiles() : 0;
    declare_candidates(tiles + (left_over ? left_over->tiles() : 0));

    const uint32_t layers_done = std::exchange(previous_, schedule_.counter("head"));
    if (head) emit_head("head", *head, norm, layers_done, {.rows = share.size, .split = s.several_ranks()});
    if (left_over) {
      emit_head("head.rest", *left_over, norm, layers_done,
                {.first_row = rest.first, .rows = rest.size, .first_candidate = tiles});
    }
    emit_choose();
  }

  void declare_candidates(uint64_t tiles_of_a_rank) {
    candidates_ = tiles_of_a_rank;
    best_value_ = scratch("best_value", {shape_.batch, shape_.ranks * candidates_});
    best_index_ = scratch("best_index", {shape_.batch, shape_.ranks * candidates_}, Dtype::i32);
  }

  // Rows of the vocabulary, and where among a rank's candidates those of their tiles stand. `split`: the first rank's
  // rows; those of the others follow.
  struct HeadRows {
    uint64_t first_row = 0;
    uint64_t rows = 0;
    uint64_t first_candidate = 0;
    bool split = false;
  };
  void emit_head(std::string label, const Matrix& head, uint32_t norm, uint32_t layers_done, const HeadRows& of) {
    const Shape& s = shape_;
    begin_linear("linear_best", std::move(label), head, h_, norm);
    schedule_.set("first_index", of.first_row);
    schedule_.set("rank_index", of.split ? of.rows : 0);
    schedule_.operand("out", logits_,
                      {.offset = of.first_row,
                       .size = head.tile_rows,
                       .strides = {head.tile_rows},
                       .rows = s.batch,
                       .row_stride = s.vocabulary,
                       .limit = of.rows,
                       .rank_stride = of.split ? of.rows : 0,
                       .everywhere = of.split});
    const auto candidates = [&](const char* operand, uint32_t tensor) {
      schedule_.operand(operand, tensor,
                        {.offset = of.first_candidate,
                         .size = 1,
                         .strides = {1},
                         .rows = s.batch,
                         .row_stride = s.ranks * candidates_,
                         .limit = head.tiles(),
                         .rank_stride = candidates_,
                         .everywhere = true});
    };
    candidates("best_value", best_value_);
    candidates("best_index", best_index_);
    schedule_.wait(layers_done);
    schedule_.signal_everywhere(previous_);
  }

  void emit_choose() {
    const Shape& s = shape_;
    schedule_.begin("choose", "choose", {s.batch});
    of_sequence("best_value", best_value_, s.ranks * candidates_);
    of_sequence("best_index", best_index_, s.ranks * candidates_);
    of_sequence("prompt_length", prompt_length_);
    schedule_.whole("stop_tokens", stop_tokens_);
    schedule_.whole("stop_count", stop_count_);
    of_sequence("tokens", tokens_, s.context);
    of_sequence("position", positions_);
    of_sequence("active", active_);
    schedule_.wait(previous_);
    schedule_.signal(chosen_);
  }

  const ModelDescription& model_;
  const Choices& choices_;
  const Split split_;
  const Shape shape_;
  Schedule schedule_;
  std::vector<Weight> weights_;
  std::vector<std::string> sources_;
  uint32_t tokens_ = 0, positions_ = 0, active_ = 0, prompt_length_ = 0, stop_tokens_ = 0, stop_count_ = 0;
  uint32_t logits_ = 0, h_ = 0, rotation_ = 0, qkv_ = 0, attention_ = 0, feed_forward_ = 0;
  uint32_t attention_workspace_ = 0, frequencies_ = 0;
  uint32_t attention_parts_ = 0, feed_forward_parts_ = 0;  // of several ranks, [rank][sequence][hidden]
  uint32_t best_value_ = 0, best_index_ = 0;
  uint64_t candidates_ = 0;  // of a rank for a sequence
  Matrix embedding_;
  uint32_t chosen_ = 0;    // every sequence's choice of a step is made
  uint32_t rotated_ = 0;   // the step's angles are there
  uint32_t previous_ = 0;  // the counter of the record before
};

}  // namespace

uint64_t Weight::padded_rows() const {
  if (layout == Layout::values) return values.size();
  uint64_t rows = 0;
  for (const Source& source : sources) rows += source.taken.size;
  if (layout == Layout::interleaved) rows = 2 * round_up(sources[0].taken.size, kBlockRows);
  return is_matrix() ? round_up(rows, tile_rows) : rows;
}

uint64_t Weight::padded_columns() const { return is_matrix() ? round_up(taken_columns.size, kBlockColumns) : 1; }

std::vector<uint64_t> Weight::shape() const {
  if (!is_matrix()) return {padded_rows()};
  return {padded_rows() / kBlockRows, padded_columns() / kBlockColumns, kBlockRows, kBlockColumns};
}

Plan lower(const ModelDescription& model, const Choices& choices, package::IsaDefinition isa) {
  return Lowering(model, choices, std::move(isa)).run();
}

}  // namespace mkrt::compile
