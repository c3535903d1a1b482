#include "host/formats/nemo/tar.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "host/base/error.hpp"

namespace cbk::nemo {
namespace {

constexpr uint64_t block = 512;
constexpr size_t longest_name = 4096;
constexpr size_t most_members = 100000;

/// A field of a header, up to its first NUL.
std::string_view text(std::string_view header, size_t offset, size_t size) {
  const std::string_view field = header.substr(offset, size);
  return field.substr(0, field.find('\0'));
}

/// Octal digits between spaces; or, if the first bit is set, a big-endian number (GNU).
std::optional<uint64_t> number(std::string_view header, size_t offset, size_t size) {
  const std::string_view field = header.substr(offset, size);
  uint64_t out = 0;
  if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) {
    for (size_t i = size - sizeof out; i < size; ++i) out = out << 8 | static_cast<unsigned char>(field[i]);
    const bool is_small =
        std::all_of(field.begin() + 1, field.end() - sizeof out, [](char c) { return c == 0; });
    return is_small ? std::optional(out) : std::nullopt;
  }
  std::string_view digits = text(header, offset, size);
  digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
  digits = digits.substr(0, digits.find(' '));
  for (const char digit : digits) {
    if (digit < '0' || digit > '7') return std::nullopt;
    out = out << 3 | static_cast<uint64_t>(digit - '0');
  }
  return out;
}

/// The sum of the header's bytes, with spaces in the place of the sum.
bool has_right_sum(std::string_view header) {
  uint64_t sum = uint64_t{8} * ' ';
  for (size_t i = 0; i < header.size(); ++i)
    if (i < 148 || i >= 156) sum += static_cast<unsigned char>(header[i]);
  return number(header, 148, 8) == sum;
}

std::string name_of(std::string_view header) {
  const std::string_view name = text(header, 0, 100);
  const bool is_posix = header.substr(257, 6) == std::string_view("ustar\0", 6);
  const std::string_view prefix = is_posix ? text(header, 345, 155) : std::string_view();
  return prefix.empty() ? std::string(name) : std::string(prefix) + "/" + std::string(name);
}

/// What the records "LENGTH KEY=VALUE\n" before a member say of it.
struct Attributes {
  std::string path;              // "": not said
  std::optional<uint64_t> size;  // where it is too large for the header
};

uint64_t decimal(std::string_view digits) {
  uint64_t out = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (error != std::errc{} || end != digits.data() + digits.size())
    fail(Errc::format, "a record of attributes has {} in place of a number", quote(digits, 40));
  return out;
}

Attributes attributes_in(std::string_view records) {
  Attributes out;
  while (!records.empty()) {
    const size_t space = records.find(' ');
    if (space == std::string_view::npos) fail(Errc::format, "a record of attributes has no length");
    const uint64_t length = decimal(records.substr(0, space));
    if (length <= space + 1 || length > records.size())
      fail(Errc::format, "a record of attributes has the length {}", length);
    const std::string_view record = records.substr(space + 1, length - space - 2);
    if (record.starts_with("path=")) out.path = record.substr(5, longest_name);
    if (record.starts_with("size=")) out.size = decimal(record.substr(5));
    if (record.starts_with("GNU.sparse."))
      fail(Errc::unsupported, "a member is stored with holes (GNU.sparse)");
    records.remove_prefix(length);
  }
  return out;
}

}  // namespace

Archive read_archive(ByteView archive) {
  const std::string_view bytes = as_text(archive);
  Archive out;
  Attributes next;  // of the next member
  for (uint64_t at = 0; at + block <= bytes.size();) {
    const std::string_view header = bytes.substr(at, block);
    if (header.find_first_not_of('\0') == std::string_view::npos) {
      out.has_end = true;
      return out;
    }
    auto size = number(header, 124, 12);
    if (!size || !has_right_sum(header))
      fail(Errc::format, "the header of a member at byte {} of the archive is damaged", at);
    const char kind = header[156];
    const bool is_about_next = kind == 'L' || kind == 'K' || kind == 'x';
    if (!is_about_next && next.size) size = next.size;
    if (*size > bytes.size() - at - block) {
      fail(Errc::format,
           "{} should have {} bytes from byte {} on, but the archive ends at {}; is it cut short?",
           quote(name_of(header)), *size, at + block, bytes.size());
    }
    const std::string_view content = bytes.substr(at + block, *size);
    if (kind == 'L') {
      next.path = content.substr(0, std::min(content.find('\0'), longest_name));
    } else if (kind == 'x') {
      next = attributes_in(content);
    } else if (!is_about_next && kind != 'g') {
      if (out.members.size() == most_members)
        fail(Errc::format, "the archive has more than {} members", most_members);
      if (kind == '0' || kind == '\0' || kind == '7')
        out.members.push_back({next.path.empty() ? name_of(header) : next.path, at + block, *size});
      next = {};
    }
    at += block + (*size + block - 1) / block * block;
  }
  return out;
}

}  // namespace cbk::nemo
