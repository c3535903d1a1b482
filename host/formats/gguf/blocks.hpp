// The element types of GGUF, and how blocks of quantised elements are decoded (FORMAT.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "host/tensor/dtype.hpp"
#include "host/tensor/storage.hpp"

namespace cbk::gguf {

/// Decodes one block into `block_elements` floats.
using DecodeBlock = void (*)(const uint8_t* block, float* out);

struct Type {
  uint32_t number = 0;
  std::string_view name;
  uint32_t block_elements = 1;
  uint32_t block_bytes = 0;
  std::optional<DType> dtype;    // of elements that are stored as such
  DecodeBlock decode = nullptr;  // of others; none: their blocks cannot be decoded
};

/// nullptr for an unknown number.
const Type* find_type(uint32_t number);

/// Blocks as float32 elements, decoded while they are read. `why_not`: why the blocks cannot be decoded.
StoragePtr decoded_storage(StoragePtr blocks, const Type& type, std::string_view why_not);

}  // namespace cbk::gguf
