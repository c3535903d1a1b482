#include "host/formats/tensorflow/table.hpp"

#include <leveldb/env.h>
#include <leveldb/options.h>
#include <leveldb/table_builder.h>
#include <snappy.h>

#include <algorithm>
#include <optional>

#include "host/base/crc32c.hpp"

namespace cbk::tensorflow {
namespace {

constexpr uint64_t magic = 0xdb4775248b80fb57ULL;
constexpr uint64_t footer_size = 48;
constexpr uint64_t trailer_size = 5;  // compression and checksum behind each block
constexpr uint64_t largest_block = 64ULL << 20;
constexpr uint64_t largest_expansion = 32;  // Snappy says at most 64 bytes with 3
constexpr uint64_t largest_keys = 256ULL << 20;
constexpr size_t block_size = 256 << 10;  // TensorFlow's
constexpr size_t named_entries = 3;

/// Numbers and texts from the beginning of some bytes.
class Cursor {
 public:
  Cursor(std::string_view bytes, std::string_view what) : bytes_(bytes), what_(what) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  [[nodiscard]] std::string_view rest() const { return bytes_; }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) fail(Errc::format, "{} ends in the middle of a number", what_);
      const auto byte = static_cast<uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    fail(Errc::format, "{} has a number of more than 64 bits", what_);
  }

  std::string_view text(uint64_t size) {
    if (size > bytes_.size()) fail(Errc::format, "{} ends in the middle of an entry", what_);
    const std::string_view out = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return out;
  }

 private:
  std::string_view bytes_;
  std::string_view what_;
};

struct BlockHandle {
  uint64_t offset = 0;
  uint64_t size = 0;
};

BlockHandle read_handle(Cursor& cursor) {
  const uint64_t offset = cursor.varint();
  return {offset, cursor.varint()};
}

/// The entries of a block without its array of restarts, which is only for searching.
std::string_view entries_of(std::string_view block) {
  if (block.size() < 4) fail(Errc::format, "a block of {} bytes", block.size());
  const uint64_t restarts = load_le<uint32_t>(block.data() + block.size() - 4);
  if (restarts > block.size() / 4 - 1)
    fail(Errc::format, "a block of {} bytes with {} restarts", block.size(), restarts);
  return block.substr(0, block.size() - 4 - 4 * restarts);
}

/// Calls `visit(key, value)` for each entry; `key` is kept from one to the next, which share prefixes.
template <typename Visit>
void each_entry(std::string_view block, Visit&& visit) {
  Cursor cursor(entries_of(block), "a block");
  std::string key;
  while (!cursor.empty()) {
    const uint64_t shared = cursor.varint();
    const uint64_t fresh = cursor.varint();
    const uint64_t value_size = cursor.varint();
    if (shared > key.size())
      fail(Errc::format, "a key shares more bytes with the key before it than that has");
    key.resize(shared);
    key += cursor.text(fresh);
    visit(std::string_view(key), cursor.text(value_size));
  }
}

/// An unpacked block, and its memory charge.
struct Unpacked {
  MemoryLoan memory;
  std::string text;
};

Unpacked unpacked(std::string_view packed, MemoryBudget& memory) {
  size_t size = 0;
  if (!snappy::GetUncompressedLength(packed.data(), packed.size(), &size))
    fail(Errc::format, "a block is not valid Snappy data");
  if (size > largest_block || size > packed.size() * largest_expansion) {
    fail(Errc::format, "a block of {} that should unpack to {}", format_size(packed.size()),
         format_size(size));
  }
  Unpacked out{MemoryLoan(memory, size), std::string(size, '\0')};
  if (!snappy::RawUncompress(packed.data(), packed.size(), out.text.data()))
    fail(Errc::format, "a block is not valid Snappy data");
  return out;
}

/// Describes the content of a damaged block for the message: the entry with the wrong byte if there is one,
/// else the first entries.
class Damage {
 public:
  Damage(std::string_view stored, uint32_t crc, const KeyNamer& name_of_key, MemoryBudget& memory)
      : bytes_(stored), name_of_key_(name_of_key), memory_(memory) {
    if (const auto wrong = find_wrong_byte(as_bytes(stored), crc)) {
      position_ = wrong->position;
      bytes_[wrong->position] = static_cast<char>(wrong->right);
    }
  }

  /// @param before   the last name that was read before it; empty: none
  /// @param up_to    what the list of blocks says that its names do not go beyond
  [[nodiscard]] std::string describe(std::string_view before, std::string_view up_to) {
    bool is_sure = position_.has_value();
    try {
      look();
    } catch (const Error&) {
      is_sure = false;
      if (count_ > 0) has_more_ = true;  // the rest cannot be read
    }
    if (!culprit_.empty())
      return fmt::format(": byte {} of the block is wrong, in the entry of {}", *position_, culprit_);
    std::string held = count_ == 0 ? "" : ", which has the entries of " + entries();
    if (is_sure) return held;
    // A block with a wrong checksum may contain anything; these names come from elsewhere.
    return fmt::format("{}; the block covers the names {} up to {}", held,
                       before.empty() ? "from the header" : "behind " + name_of_key_(before),
                       name_of_key_(up_to));
  }

 private:
  void look() {
    const bool is_packed = bytes_.back() != '\0';
    bytes_.pop_back();
    const std::string block = is_packed ? unpacked(bytes_, memory_).text : bytes_;
    each_entry(block, [&](std::string_view key, std::string_view value) {
      const auto end = static_cast<size_t>(value.data() + value.size() - block.data());
      if (!is_packed && culprit_.empty() && position_ && *position_ < end) culprit_ = name_of_key_(key);
      if (++count_ <= named_entries) names_.push_back(name_of_key_(key));
    });
  }

  [[nodiscard]] std::string entries() const {
    std::string out = listed(names_);
    if (count_ > names_.size()) out += fmt::format(" and {} more", count_ - names_.size());
    return has_more_ ? out + ", …" : out;
  }

  std::string bytes_;
  const KeyNamer& name_of_key_;
  MemoryBudget& memory_;
  std::optional<size_t> position_;
  std::vector<std::string> names_;  // of the first entries: a block may have millions
  size_t count_ = 0;                // entries
  bool has_more_ = false;
  std::string culprit_;
};

class TableFile {
 public:
  TableFile(std::string_view file, const KeyNamer& name_of_key, MemoryBudget& memory)
      : file_(file), name_of_key_(name_of_key), memory_(memory) {}

  void read(const TableVisitor& visit) {
    if (!is_table(as_bytes(file_)))
      fail(Errc::format, "it is not the index of a TensorFlow checkpoint: the end of the table is missing");
    const std::string_view footer = file_.substr(file_.size() - footer_size, footer_size - 8);
    Cursor cursor(footer, "the end of the index");
    const BlockHandle meta = read_handle(cursor);
    const BlockHandle index = read_handle(cursor);
    if (cursor.rest().find_first_not_of('\0') != std::string_view::npos) {
      fail(Errc::format, "the end of the index is damaged: its padding is not zero");
    }
    first_special_ = std::min(meta.offset, index.offset);
    (void)block(meta, "the list of filters");
    const Block blocks = block(index, "the list of blocks");
    each_entry(blocks.text(), [&](std::string_view up_to, std::string_view value) {
      Cursor handle(value, "the place of a block");
      read_block(read_handle(handle), up_to, visit);
    });
  }

 private:
  /// @param up_to   a key that is not less than all of the block
  void read_block(const BlockHandle& handle, std::string_view up_to, const TableVisitor& visit) {
    // Blocks that overlap could make a short file a long one.
    if (handle.offset < end_) fail(Errc::format, "the index is damaged: two of its blocks overlap");
    const Block entries = block(handle, "a block", up_to);
    end_ = handle.offset + handle.size;
    each_entry(entries.text(), [&](std::string_view key, std::string_view value) {
      if (has_key_ && key <= last_key_) {
        fail(Errc::format, "the entry of {} is {} in the index", name_of_key_(key),
             key == last_key_ ? "repeated" : "out of order");
      }
      keys_size_ += key.size();
      if (keys_size_ > largest_keys)
        fail(Errc::format, "the names of the index take more than {}", format_size(largest_keys));
      has_key_ = true;
      last_key_ = key;
      visit(key, value);
    });
  }

  /// The content of a block, in the file or unpacked.
  struct Block {
    [[nodiscard]] std::string_view text() const { return unpacked ? unpacked->text : stored; }
    std::string_view stored;
    std::optional<Unpacked> unpacked;
  };

  /// A block with a verified checksum.
  [[nodiscard]] Block block(const BlockHandle& handle, std::string_view what,
                            std::string_view up_to = {}) const {
    const uint64_t end = file_.size() - footer_size;
    if (handle.offset > end || handle.size > end - handle.offset ||
        end - handle.offset - handle.size < trailer_size) {
      fail(Errc::format, "the index is damaged: {} should have {} bytes at byte {} of {}", what, handle.size,
           handle.offset, file_.size());
    }
    const std::string_view stored = file_.substr(handle.offset, handle.size + 1);
    const auto masked = load_le<uint32_t>(stored.data() + stored.size());
    if (masked_crc32c(crc32c(as_bytes(stored))) != masked) {
      fail(Errc::format, "the index is damaged: the checksum of {} does not match{}", what,
           handle.offset < first_special_
               ? Damage(stored, unmasked_crc32c(masked), name_of_key_, memory_).describe(last_key_, up_to)
               : "");
    }
    const std::string_view content = stored.substr(0, handle.size);
    switch (stored.back()) {
      case '\0':
        return {content, std::nullopt};
      case '\1':
        return {content, unpacked(content, memory_)};
      default:
        fail(Errc::unsupported, "{} of the index has the unknown compression {}", what,
             static_cast<uint8_t>(stored.back()));
    }
  }

  std::string_view file_;
  const KeyNamer& name_of_key_;
  MemoryBudget& memory_;
  uint64_t first_special_ = 0;  // where the blocks end that have entries
  uint64_t end_ = 0;            // of the blocks read
  bool has_key_ = false;
  std::string last_key_;
  uint64_t keys_size_ = 0;
};

/// What TableBuilder writes to.
class TextFile final : public leveldb::WritableFile {
 public:
  leveldb::Status Append(const leveldb::Slice& data) override {
    text.append(data.data(), data.size());
    return {};
  }
  leveldb::Status Close() override { return {}; }
  leveldb::Status Flush() override { return {}; }
  leveldb::Status Sync() override { return {}; }
  std::string text;
};

}  // namespace

bool is_table(ByteView file) {
  return file.size() >= footer_size && load_le<uint64_t>(file.data() + file.size() - 8) == magic;
}

void read_table(ByteView file, const KeyNamer& name_of_key, const TableVisitor& visit, MemoryBudget& memory) {
  TableFile(as_text(file), name_of_key, memory).read(visit);
}

std::string write_table(const std::vector<std::pair<std::string, std::string>>& entries) {
  leveldb::Options options;
  options.compression = leveldb::kNoCompression;
  options.block_size = block_size;
  TextFile file;
  leveldb::TableBuilder builder(options, &file);
  for (const auto& [key, value] : entries) builder.Add(key, value);
  if (const leveldb::Status status = builder.Finish(); !status.ok())
    fail(Errc::internal, "{}", status.ToString());
  return std::move(file.text);
}

}  // namespace cbk::tensorflow
