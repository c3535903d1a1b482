// The header of a GGUF file: metadata and the places of the tensors, checked against the file (FORMAT.md).
#pragma once

#include <string>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/memory_budget.hpp"
#include "host/formats/gguf/blocks.hpp"
#include "host/value/value.hpp"

namespace cbk::gguf {

struct TensorInfo {
  std::string_view name;  // in the file
  Shape shape;            // the last dim varies fastest: the file has them the other way round
  uint32_t type_number = 0;
  const Type* type = nullptr;  // none: the number is not known, nor how many bytes the tensor has
  uint64_t offset = 0;         // in the file
  uint64_t size = 0;           // in bytes; 0 where the type is not known
};

struct Header {
  uint32_t version = 0;
  bool is_big_endian = false;
  uint64_t alignment = 32;  // of the data of each tensor
  uint64_t data_start = 0;
  Value metadata;  // a dict by whole keys ("general.architecture")
  std::vector<TensorInfo> tensors;
};

bool looks_like_gguf(ByteView head);

/// The caller must check that all tensors are in the file. Errors: `format`; `unsupported` for other
/// versions.
Header read_header(const std::shared_ptr<const MappedFile>& file, MemoryBudget& memory);

/// The type of the object for an array of many texts.
inline constexpr std::string_view texts_type = "gguf.texts";

/// The texts of such an object.
std::vector<std::string> texts_of(const Object& object);

}  // namespace cbk::gguf
