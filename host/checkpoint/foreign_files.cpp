#include "host/checkpoint/foreign_files.hpp"

#include <algorithm>
#include <array>

#include "host/base/utf8.hpp"
#include "host/checkpoint/formats.hpp"
#include "host/formats/file_names.hpp"

namespace cbk {
namespace {

constexpr size_t head_size = 4096;

std::string_view head_of(const MappedFile& file) {
  return as_text(file.bytes()).substr(0, head_size);
}

bool is_text(std::string_view head) {
  // A character may be cut at the end of the head.
  for (size_t i = 0; i < head.size();) {
    const auto character = decode_utf8(head, i);
    if (!character) return i + 4 > head.size() && head.size() == head_size;
    if (*character < 0x20 && *character != '\n' && *character != '\r' && *character != '\t') return false;
  }
  return true;
}

std::string lower_start(std::string_view head) {
  const size_t start = std::min(head.find_first_not_of(" \t\r\n"), head.size());
  std::string out(head.substr(start, 64));
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

struct Foreign {
  std::string_view magic;
  std::string_view what;
};
constexpr std::array<Foreign, 5> foreign_formats = {{
    {"\x1f\x8b", "compressed with gzip; unpack it first"},
    {"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first"},
    {"\xfd"
     "7zXZ",
     "compressed with xz; unpack it first"},
    {"\x7f"
     "ELF",
     "a program, not a checkpoint"},
    {"\x89PNG", "a picture, not a checkpoint"},
}};

[[noreturn]] void fail_as_text(std::string_view head) {
  const std::string start = lower_start(head);
  if (start.starts_with("version https://git-lfs")) {
    fail(Errc::format, "it is a Git LFS pointer, not the file itself; fetch it with 'git lfs pull'");
  }
  if (start.starts_with("<!doctype") || start.starts_with("<html") || start.starts_with("<?xml")) {
    fail(Errc::format, "it is a web page (HTML or XML), perhaps the error page of a failed download");
  }
  if (start.starts_with("{") || start.starts_with("[")) {
    throw Error(Errc::format, {.problem = "it is JSON without a 'weight_map': a config, not a checkpoint",
                               .advice = "name the checkpoint, or its folder"});
  }
  throw Error(Errc::format, {.problem = "it is text, perhaps a config, not a checkpoint",
                             .advice = "name the checkpoint, or its folder"});
}

}  // namespace

bool is_text_file(const MappedFile& file) {
  return is_text(head_of(file));
}

void fail_as_foreign(const MappedFile& file) {
  const std::string_view head = head_of(file);
  if (head.empty()) fail(Errc::format, "the file is empty");
  for (const Foreign& format : foreign_formats) {
    if (head.starts_with(format.magic)) fail(Errc::format, "it is {}", format.what);
  }
  if (head.starts_with("\x80") && head.size() > 1 && head[1] >= 2 && head[1] <= 5) {
    fail(Errc::format, "it is a bare pickle, not a torch checkpoint");
  }
  if (is_text(head)) fail_as_text(head);
  if (file.path().extension() == bundle_index_suffix) {
    fail(Errc::format,
         "the index of a TensorFlow checkpoint ends with a magic number, which this file of {} lacks: "
         "it was cut short, or is another kind of file",
         format_size(file.size()));
  }
  std::string known;
  for (const Format& format : all_formats()) {
    if (format.read != nullptr) known += std::string(format.title) + ", ";
  }
  fail(Errc::format, "its format is not known; known are {}and an index of shards", known);
}

}  // namespace cbk
