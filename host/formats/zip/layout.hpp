// The places of a zip archive's members before any is written. Sizes are known, so there are no data
// descriptors; only the checksums come later. Every member's data is aligned, as in torch's own writer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cbk::zip {

class Layout {
 public:
  static constexpr uint64_t alignment = 64;

  void reserve(size_t count) { members_.reserve(count); }
  /// The offset of the member's data.
  uint64_t add(std::string_view name, uint64_t size);
  [[nodiscard]] size_t count() const { return members_.size(); }
  /// Bytes of the whole archive.
  [[nodiscard]] uint64_t total_size() const;

  /// The header of member i with its padding, to be written at header_offset(i): it ends at the beginning of
  /// the data
  [[nodiscard]] std::string header(size_t i, uint32_t crc32) const;
  [[nodiscard]] uint64_t header_offset(size_t i) const { return members_[i].header_offset; }
  /// The part after the last member, to be written at directory_offset(); one checksum per member.
  [[nodiscard]] std::string directory(const std::vector<uint32_t>& crcs) const;
  [[nodiscard]] uint64_t directory_offset() const { return end_; }

 private:
  struct Member {
    uint64_t name = 0;  // where it begins
    uint64_t size = 0;
    uint64_t header_offset = 0;
  };
  [[nodiscard]] std::string_view name_of(size_t i) const;
  [[nodiscard]] uint64_t data_offset(size_t i) const;

  std::string names_;
  std::vector<Member> members_;
  uint64_t end_ = 0;
};

}  // namespace cbk::zip
