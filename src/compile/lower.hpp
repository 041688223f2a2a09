// Lowering: a model description becomes the schedule of one package and the list of weights that it needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compile/model.hpp"
#include "compile/split.hpp"
#include "package/program.hpp"

namespace mkrt::compile {

// Packed matrices consist of blocks of 8 rows x 32 columns (isa/README.md).
inline constexpr uint64_t kBlockRows = 8;
inline constexpr uint64_t kBlockColumns = 32;

// One tensor of a weight file and the tensors of the checkpoint that it is made of.
struct Weight {
  enum class Layout : uint8_t {
    matrix,       // the sources' rows one after the other, in packed order
    interleaved,  // eight rows of the first source, eight of the second, in turns, in packed order
    vector,       // the sources' elements one after the other, f32
    values        // `values`, f32
  };
  struct Source {
    std::string name;
    uint64_t rows = 0;  // of the checkpoint's tensor; elements of a vector
    Share taken;        // of them
  };

  std::string name;
  Layout layout = Layout::matrix;
  std::vector<Source> sources;
  uint64_t columns = 1;  // of the checkpoint's tensors
  Share taken_columns = whole(1);
  uint64_t tile_rows = 1;  // the packed matrix is padded to a multiple of this many rows
  std::vector<float> values = {};
  std::optional<uint32_t> rank = {};  // whose file it is in; none: the file of all

  bool is_matrix() const { return layout == Layout::matrix || layout == Layout::interleaved; }
  uint64_t padded_rows() const;     // rows of the packed matrix; elements of a vector
  uint64_t padded_columns() const;  // 1 for a vector
  // In the package: bf16 blocks [row][column][8][32] of a matrix, f32 elements of a vector.
  package::Dtype dtype() const { return is_matrix() ? package::Dtype::bf16 : package::Dtype::f32; }
  std::vector<uint64_t> shape() const;
  uint64_t size_bytes() const { return padded_rows() * padded_columns() * package::dtype_size(dtype()); }
};

struct Plan {
  package::Program program;          // without weight files and metadata
  std::vector<Weight> weights;       // in the order in which a step reads them, matrices before vectors
  std::vector<std::string> sources;  // names in the weight files of the program's weights, in their order
};

// What the caller of the compiler chose; zeros are resolved already, except tile_rows and splits.
struct Choices {
  uint32_t batch = 1;
  uint32_t context = 1;
  uint32_t tile_rows = 0;
  uint32_t splits = 0;
  uint32_t ranks = 1;
};

// Throws base::Failure (ARGUMENT) where the model cannot be divided over so many ranks.
Plan lower(const ModelDescription& model, const Choices& choices, package::IsaDefinition isa);

}  // namespace mkrt::compile
