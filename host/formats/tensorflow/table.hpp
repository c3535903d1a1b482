// Sorted tables of keys and values in LevelDB's format, such as the index of a bundle.
//
// They are written with libleveldb. They are read without it, because it trusts the sizes of blocks in a
// file: it reserves memory for any of them, and sizes near 2^64 make it read outside its memory.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/bytes.hpp"
#include "host/base/memory_budget.hpp"

namespace cbk::tensorflow {

/// Whether a file ends like a table.
bool is_table(ByteView file);

/// Called for each entry in the order of the keys; the texts live as long as the call.
using TableVisitor = std::function<void(std::string_view key, std::string_view value)>;

/// The text by which a message names the entry with this key.
using KeyNamer = std::function<std::string(std::string_view key)>;

/// Every checksum is verified and every size is checked before use. Errors: `format`; those about a damaged
/// block name the entry with the wrong byte, or the entries of the block. Blocks are charged while they are
/// unpacked.
void read_table(ByteView file, const KeyNamer& name_of_key, const TableVisitor& visit, MemoryBudget& memory);

/// A whole table, uncompressed, as TensorFlow writes it. The keys must ascend.
std::string write_table(const std::vector<std::pair<std::string, std::string>>& entries);

}  // namespace cbk::tensorflow
