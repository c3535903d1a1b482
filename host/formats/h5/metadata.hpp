// The JSON text that format 0.5 keeps for each leaf, for the reader and the writer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "host/value/value.hpp"

namespace cbk::h5 {

inline constexpr std::string_view metadata_suffix = ".__metadata__";

/// The text of an ordinary leaf up to its METADATA object. If a leaf's text begins like this, only that
/// object needs parsing.
std::string metadata_head(std::string_view key);
inline constexpr std::string_view metadata_tail = "\n}";

/// The whole text; `metadata` is a dict.
std::string leaf_metadata(std::string_view key, const Value& metadata);

/// The METADATA object of a torch tensor. There are many of them, so they are written and recognised without
/// a
/// JSON tree.
struct TensorMetadata {
  DType dtype = DType::float32;
  int64_t release_code = 0;
  Shape shape;
};
std::string tensor_metadata(const TensorMetadata& metadata);
/// Nothing if the text does not have exactly the form that Python's json module writes; it may still be
/// valid.
std::optional<TensorMetadata> match_tensor_metadata(std::string_view object);

}  // namespace cbk::h5
