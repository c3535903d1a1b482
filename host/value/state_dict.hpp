// A state dict: tensors by name. Some formats can hold nothing else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/value/value.hpp"

namespace cbk {

struct NamedTensor {
  std::string name;
  Value leaf;  // Kind::tensor
};

/// The tensors of a dict, in its order; the names of nested dicts are joined with ".". `format` is for
/// messages. Errors: `value`, naming values that are not tensors (the first 20 keys) and names that belong to
/// two tensors.
std::vector<NamedTensor> flat_tensors(const Value& root, std::string_view format);

/// The number of `tensors` with the same data as an earlier one: a format without ties writes them as copies.
size_t count_ties(const std::vector<NamedTensor>& tensors);

/// The warning: "2 tied tensors are written as copies: " and the reason.
std::string written_as_copies(size_t ties, std::string_view why);

}  // namespace cbk
