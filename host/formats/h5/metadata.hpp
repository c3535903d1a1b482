// The JSON text that format 0.5 keeps for each leaf, for the reader and the writer.
#pragma once

#include <string>
#include <string_view>

#include "host/value/value.hpp"

namespace cbk::h5 {

inline constexpr std::string_view metadata_suffix = ".__metadata__";

/// The text of an ordinary leaf up to its METADATA object. A leaf whose text begins so needs no further
/// parsing but of that object.
std::string metadata_head(std::string_view key);
inline constexpr std::string_view metadata_tail = "\n}";

/// The whole text; `metadata` is a dict.
std::string leaf_metadata(std::string_view key, const Value& metadata);

}  // namespace cbk::h5
