// The header of a safetensors file: read and checked against the file.
#pragma once

#include <string>
#include <vector>

#include "host/base/file.hpp"
#include "host/formats/safetensors/dtypes.hpp"
#include "host/value/value.hpp"

namespace cbk::safetensors {

struct Entry {
  std::string name;
  const DTypeInfo* dtype = nullptr;  // of the table of dtypes
  Shape shape;
  uint64_t begin = 0;  // relative to the start of the data
  uint64_t end = 0;
};

struct Header {
  std::vector<Entry> entries;  // in the order of the header
  Value metadata;              // a dict of texts, or none
  uint64_t data_start = 0;
};

/// Reads and checks everything except the tensors' bytes. `may_be_cut`: they may end beyond the file. Errors:
/// `format`.
Header read_header(const MappedFile& file, bool may_be_cut = false);

/// Length, header and padding, ready to be written in front of the data. Entries keep their order.
std::string write_header(const std::vector<Entry>& entries, const Value& metadata);

}  // namespace cbk::safetensors
