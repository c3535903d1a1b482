#include "host/formats/zip/layout.hpp"

#include <algorithm>

#include "host/base/bytes.hpp"
#include "host/base/utf8.hpp"
#include "host/formats/zip/records.hpp"

namespace cbk::zip {
namespace {

constexpr uint16_t utf8_names = 0x0800;
constexpr uint16_t plain_version = 20;
constexpr uint16_t zip64_version = 45;
constexpr uint64_t extra_head = 4;                 // id and length of an extra field
constexpr uint64_t local_zip64 = extra_head + 16;  // both sizes

bool is_large(uint64_t value) {
  return value >= in_zip64;
}

uint32_t narrow(uint64_t value) {
  return is_large(value) ? in_zip64 : static_cast<uint32_t>(value);
}

/// Appends method, time and date, checksum and sizes, which are the same in both headers.
void append_common(std::string& out, uint32_t crc32, uint64_t size) {
  append_le(out, utf8_names);
  append_le(out, stored);
  append_le(out, uint32_t{0});  // no time and date: equal content, equal bytes
  append_le(out, crc32);
  append_le(out, narrow(size));
  append_le(out, narrow(size));
}

std::string central_zip64(uint64_t size, uint64_t header_offset) {
  std::string values;
  if (is_large(size)) {
    append_le(values, size);
    append_le(values, size);
  }
  if (is_large(header_offset)) append_le(values, header_offset);
  if (values.empty()) return values;
  std::string extra;
  append_le(extra, zip64_extra);
  append_le(extra, static_cast<uint16_t>(values.size()));
  return extra + values;
}

}  // namespace

uint64_t Layout::add(std::string_view name, uint64_t size) {
  if (name.size() > 0xffff - 4 * alignment)
    fail(Errc::value, "the name {} is too long for a zip archive", quote(name));
  if (!is_strict_utf8(name) || name.find(char{0}) != std::string_view::npos) {
    fail(Errc::value, "the name {} is not Unicode text without NUL, as names in a zip archive are",
         quote(name));
  }
  members_.push_back({names_.size(), size, end_});
  names_ += name;
  const uint64_t data = data_offset(members_.size() - 1);
  end_ = data + size;
  return data;
}

std::string_view Layout::name_of(size_t i) const {
  const uint64_t end = i + 1 < members_.size() ? members_[i + 1].name : names_.size();
  return std::string_view(names_).substr(members_[i].name, end - members_[i].name);
}

uint64_t Layout::data_offset(size_t i) const {
  const Member& member = members_[i];
  const uint64_t zip64 = is_large(member.size) ? local_zip64 : 0;
  return align_up(member.header_offset + local_size + name_of(i).size() + zip64 + extra_head, alignment);
}

uint64_t Layout::total_size() const {
  uint64_t size = end_ + names_.size() + end64_size + locator64_size + end_size;
  for (const Member& member : members_) {
    size += central_size + central_zip64(member.size, member.header_offset).size();
  }
  return size;
}

std::string Layout::header(size_t i, uint32_t crc32) const {
  const Member& member = members_[i];
  const bool large = is_large(member.size);
  const std::string_view name = name_of(i);
  const uint64_t extra = data_offset(i) - member.header_offset - local_size - name.size();
  const uint64_t padding = extra - extra_head - (large ? local_zip64 : 0);
  std::string out;
  append_le(out, local_signature);
  append_le(out, large ? zip64_version : plain_version);
  append_common(out, crc32, member.size);
  append_le(out, static_cast<uint16_t>(name.size()));
  append_le(out, static_cast<uint16_t>(extra));
  out += name;
  if (large) {
    append_le(out, zip64_extra);
    append_le(out, static_cast<uint16_t>(local_zip64 - extra_head));
    append_le(out, member.size);
    append_le(out, member.size);
  }
  append_le(out, padding_extra);
  append_le(out, static_cast<uint16_t>(padding));
  out.append(padding, 'Z');
  return out;
}

std::string Layout::directory(const std::vector<uint32_t>& crcs) const {
  std::string out;
  out.reserve(total_size() - end_);
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    const std::string_view name = name_of(i);
    const std::string extra = central_zip64(member.size, member.header_offset);
    const uint16_t version = extra.empty() ? plain_version : zip64_version;
    append_le(out, central_signature);
    append_le(out, version);
    append_le(out, version);
    append_common(out, crcs[i], member.size);
    append_le(out, static_cast<uint16_t>(name.size()));
    append_le(out, static_cast<uint16_t>(extra.size()));
    append_le(out, uint16_t{0});  // comment
    append_le(out, uint16_t{0});  // disk
    append_le(out, uint16_t{0});  // internal attributes
    append_le(out, uint32_t{0});  // external attributes
    append_le(out, narrow(member.header_offset));
    out += name;
    out += extra;
  }
  const uint64_t size = out.size();
  const uint64_t end64 = end_ + size;
  append_le(out, end64_signature);
  append_le(out, end64_size - end64_head);
  append_le(out, zip64_version);
  append_le(out, zip64_version);
  append_le(out, uint64_t{0});  // disks
  append_le(out, uint64_t{members_.size()});
  append_le(out, uint64_t{members_.size()});
  append_le(out, size);
  append_le(out, end_);
  append_le(out, locator64_signature);
  append_le(out, uint32_t{0});
  append_le(out, end64);
  append_le(out, uint32_t{1});
  append_le(out, end_signature);
  append_le(out, uint32_t{0});
  const auto count = static_cast<uint16_t>(std::min<size_t>(members_.size(), 0xffff));
  append_le(out, count);
  append_le(out, count);
  append_le(out, narrow(size));
  append_le(out, narrow(end_));
  append_le(out, uint16_t{0});
  return out;
}

}  // namespace cbk::zip
