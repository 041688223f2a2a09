#include "compile/checkpoint.hpp"

#include <filesystem>

#include "base/failure.hpp"
#include "compile/json_file.hpp"

namespace mkrt::compile {
namespace {

using base::Failure;
using base::shown_path;
using base::text;

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string written = "[";
  for (const uint64_t size : shape) written += (written.size() > 1 ? ", " : "") + std::to_string(size);
  return written + "]";
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  const std::string single = folder + "/model.safetensors";
  const std::string index = single + ".index.json";
  if (std::filesystem::exists(single)) {
    open(single);
  } else if (std::filesystem::exists(index)) {
    open_index(folder, index);
  } else {
    throw Failure(MKRT_ERROR_FILE,
                  text(shown_path(folder), " has neither model.safetensors nor model.safetensors.index.json"));
  }
}

void Checkpoint::open(const std::string& path) {
  files_.push_back(std::make_unique<const package::SafetensorsFile>(path));
  for (const package::SafetensorsFile::Named& tensor : files_.back()->tensors()) {
    tensors_.emplace(tensor.name, &tensor.view);
  }
}

// The index's "weight_map" gives the file of each tensor; a file may hold others too, which do not count.
void Checkpoint::open_index(const std::string& folder, const std::string& index_path) {
  const package::Json index = read_json(index_path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    throw Failure(MKRT_ERROR_FORMAT, text(shown_path(index_path), ": /weight_map is not an object"));
  }
  std::map<std::string, const package::SafetensorsFile*> opened;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) {
      throw Failure(MKRT_ERROR_FORMAT,
                    text(shown_path(index_path), ": /weight_map: ", base::quoted(name), " is not a file name"));
    }
    const std::string file_name = file.get<std::string>();
    if (file_name.empty() || file_name.find_first_of("/\\:") != std::string::npos || file_name == "..") {
      throw Failure(MKRT_ERROR_FORMAT, text(shown_path(index_path), ": /weight_map: ", base::quoted(name),
                                            " names a file outside the folder"));
    }
    const package::SafetensorsFile*& holder = opened[file_name];
    if (!holder) {
      files_.push_back(std::make_unique<const package::SafetensorsFile>(text(folder, "/", file_name)));
      holder = files_.back().get();
    }
    const package::SafetensorsView* view = holder->find(name);
    if (!view) {
      throw Failure(MKRT_ERROR_FORMAT, text(shown_path(index_path), ": tensor ", base::quoted(name), " is not in ",
                                            base::quoted(file_name)));
    }
    tensors_.emplace(name, view);
  }
}

SourceTensor Checkpoint::take(const std::string& name, const std::vector<uint64_t>& shape) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw Failure(MKRT_ERROR_FORMAT, text(shown_path(folder_), ": tensor ", base::quoted(name), " is missing"));
  const package::SafetensorsView& view = *found->second;
  if (view.shape != shape) {
    throw Failure(MKRT_ERROR_FORMAT, text(shown_path(folder_), ": tensor ", base::quoted(name), " has the shape ",
                                          shape_text(view.shape), "; config.json implies ", shape_text(shape)));
  }
  SourceTensor tensor{SourceDtype::bf16, view.bytes};
  if (view.dtype == "F32") {
    tensor.dtype = SourceDtype::f32;
  } else if (view.dtype == "F16") {
    tensor.dtype = SourceDtype::f16;
  } else if (view.dtype != "BF16") {
    throw Failure(MKRT_ERROR_UNSUPPORTED, text(shown_path(folder_), ": tensor ", base::quoted(name), " has the dtype ",
                                               view.dtype, "; supported are F32, F16 and BF16"));
  }
  taken_.insert(name);
  return tensor;
}

void Checkpoint::refuse_unused(bool tied_embeddings) const {
  for (const auto& [name, view] : tensors_) {
    if (taken_.contains(name) || name.ends_with(".rotary_emb.inv_freq")) continue;
    if (tied_embeddings && name == "lm_head.weight") continue;
    throw Failure(MKRT_ERROR_UNSUPPORTED, text(shown_path(folder_), ": tensor ", base::quoted(name),
                                               " is not part of the architecture that config.json describes"));
  }
}

}  // namespace mkrt::compile
