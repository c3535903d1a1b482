// Archives of arrays: whatever opens must be readable to the last byte, and the rest must be an Error. What
// an input that begins with 0 has behind it are members, in an archive with the right checksums.
#include <libdeflate.h>
#include <unistd.h>

#include "host/base/transaction.hpp"
#include "host/checkpoint/open.hpp"
#include "host/value/walk.hpp"
#include "tests/fuzz/memory_bar.hpp"

using namespace cbk;

namespace {

void append_entry(std::string& out, std::string_view begin, std::string_view name, std::string_view content) {
  out += begin;
  out += std::string(10, '\0');
  append_le(out, libdeflate_crc32(0, content.data(), content.size()));
  append_le(out, static_cast<uint32_t>(content.size()));
  append_le(out, static_cast<uint32_t>(content.size()));
  append_le(out, static_cast<uint32_t>(name.size()));
}

/// The input as [content as u8 size, content] members; without the directory where it is not whole.
std::string archive_of(std::string_view input, bool is_whole) {
  std::string out;
  std::string directory;
  uint16_t count = 0;
  for (; !input.empty(); ++count) {
    const size_t size = std::min<size_t>(static_cast<uint8_t>(input[0]), input.size() - 1);
    const std::string content = std::string("\x93NUMPY", 6) + std::string(input.substr(1, size));
    const std::string name = fmt::format("{}.npy", count);
    append_entry(directory, std::string_view("PK\1\2\0\0", 6), name, content);
    directory += std::string(10, '\0');
    append_le(directory, static_cast<uint32_t>(out.size()));
    directory += name;
    append_entry(out, "PK\3\4", name, content);
    out += name + content;
    input.remove_prefix(1 + size);
  }
  if (!is_whole) return out;
  const auto begin = static_cast<uint32_t>(out.size());
  out += directory + std::string("PK\5\6\0\0\0\0", 8);
  append_le(out, count);
  append_le(out, count);
  append_le(out, static_cast<uint32_t>(directory.size()));
  append_le(out, begin);
  return out + std::string(2, '\0');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fs::path path = fs::temp_directory_path() / fmt::format("cbk-fuzz-{}.npz", getpid());
  std::string file(reinterpret_cast<const char*>(data), size);
  const bool salvage = size % 2 == 1;
  if (file.starts_with('\0')) file = archive_of(std::string_view(file).substr(1), !salvage);
  write_file(path, file, true);
  const MemoryBar bar(file.size());
  try {
    const Checkpoint checkpoint = open_checkpoint(path, {.salvage = salvage});
    if (checkpoint.format != "npz" && checkpoint.format != "npy") return 0;
    each_leaf(checkpoint.root, [&](const std::string& /*path*/, const Value& leaf) {
      if (leaf.is(Value::Kind::tensor) && leaf.as_tensor().nbytes() < (1 << 20))
        (void)leaf.as_tensor().to_bytes();
    });
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
