// Bundles of TensorFlow: an index of anything over a data file of some bytes. Whatever opens must be
// readable, or say what is damaged; the rest must be an Error. Wrong checksums of blocks are made right, so
// that what is behind them is reached.
#include <unistd.h>

#include "host/base/crc32c.hpp"
#include "host/base/transaction.hpp"
#include "host/checkpoint/open.hpp"
#include "host/formats/tensorflow/foreign.hpp"
#include "tests/fuzz/memory_bar.hpp"

namespace {

void read_all(const cbk::Value& value) {
  try {
    if (value.is(cbk::Value::Kind::tensor)) {
      (void)value.as_tensor().to_bytes(1 << 20);
    } else {
      const auto tensor = cbk::tensorflow::to_foreign(value);
      const cbk::Bytes bytes = tensor.elements.to_bytes(1 << 20);
      (void)cbk::tensorflow::decode_texts(bytes, cbk::numel_of(tensor.shape));
    }
  } catch (const cbk::Error&) {
    return;
  }
}

/// The input as a table: [blocks as u8 size, content, u8 compression], a block of blocks over them, and the
/// end. So every checksum is right.
std::string as_table(std::string_view input) {
  std::string out;
  const auto put = [&](std::string_view content, char compression) {
    const std::string handle = {static_cast<char>(out.size() & 127), static_cast<char>(content.size() & 127)};
    const std::string stored = std::string(content) + compression;
    out += stored;
    cbk::append_le(out, cbk::masked_crc32c(cbk::crc32c(cbk::as_bytes(stored))));
    return handle;
  };
  std::string blocks;
  char key = 'a';
  while (input.size() > 2 && out.size() < 100) {
    const size_t size = std::min<size_t>(static_cast<uint8_t>(input[0]) % 64, input.size() - 2);
    const std::string handle = put(input.substr(2, size), static_cast<char>(input[1] & 1));
    blocks += std::string{'\0', '\1', '\2', key++} + handle;
    input.remove_prefix(2 + size);
  }
  if (out.size() > 110) return out;
  const std::string filters = put(std::string_view("\0\0\0\0", 4), '\0');
  const std::string index = put(blocks + std::string(4, '\0'), '\0');
  std::string end = filters + index;
  end.resize(40, '\0');
  cbk::append_le(end, 0xdb4775248b80fb57ULL);
  return out + end;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cbk;
  static const fs::path prefix = fs::temp_directory_path() / fmt::format("cbk-fuzz-{}", getpid());
  static const bool has_data = [] {
    write_file(prefix.string() + ".data-00000-of-00001", std::string(4096, 'x'), true);
    return true;
  }();
  if (!has_data || size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  write_file(prefix.string() + ".index", data[0] == 0 ? as_table(text.substr(1)) : std::string(text), true);
  const MemoryBar bar(size);
  try {
    const Checkpoint checkpoint = open_checkpoint(prefix.string() + ".index");
    if (checkpoint.format != "tensorflow") return 0;
    for (const auto& entry : checkpoint.root.as_dict().entries()) read_all(entry.second);
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
