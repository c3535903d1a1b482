// HDF5 files: the structures, the checkpoint above them, the chunk decoders, and edits. Whatever opens must
// be readable in any block; the rest must be an Error.
#include <unistd.h>

#include "host/base/transaction.hpp"
#include "host/formats/h5/edit.hpp"
#include "host/formats/h5/reader.hpp"
#include "host/formats/hdf5/filters.hpp"
#include "host/formats/hdf5/inspect.hpp"
#include "tests/fuzz/memory_bar.hpp"

namespace {

void touch(const cbk::Value& value) {
  if (value.is(cbk::Value::Kind::dict)) {
    for (const auto& entry : value.as_dict().entries()) touch(entry.second);
  } else if (value.is(cbk::Value::Kind::sequence)) {
    for (const cbk::Value& item : value.as_sequence().items) touch(item);
  } else if (value.is(cbk::Value::Kind::tensor)) {
    const cbk::Tensor& tensor = value.as_tensor();
    cbk::Bytes block(cbk::size_of(tensor.dtype()) *
                     static_cast<size_t>(std::min<int64_t>(tensor.numel(), 4096)));
    tensor.read(0, block);
    tensor.read(tensor.numel() - static_cast<int64_t>(block.size() / cbk::size_of(tensor.dtype())), block);
  }
}

template <typename Action>
void attempt(Action action) {
  try {
    action();
  } catch (const cbk::Error&) {
    return;
  }
}

/// Another name and another value wherever that is possible; the result must be an HDF5 file again.
void edit(const cbk::fs::path& path) {
  using namespace cbk;
  h5::FileEdit edit(path);
  edit.set_attribute("__spec__", "text");
  int number = 0;
  for (const std::string& name : edit.names()) {
    attempt([&] { edit.link(fmt::format("name {}", ++number), name); });
    attempt([&] { edit.set_value(name, 7); });
  }
  const fs::path out = path.string() + ".edited";
  attempt([&] {
    edit.save_as(out, true, false);
    if (h5::FileEdit(out).names() != edit.names()) std::abort();
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cbk;
  const ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  if (size > 8 && data[0] < 8) {  // a chunk: the filters are in the first byte, the size in the next ones
    std::vector<hdf5::Filter> filters;
    constexpr uint16_t ids[] = {hdf5::Filter::shuffle, hdf5::Filter::deflate, hdf5::Filter::lzf,
                                hdf5::Filter::lz4};
    for (int i = 0; i < 3; ++i) {
      if ((data[0] >> i & 1) != 0) filters.push_back({ids[(data[1] >> (2 * i)) & 3], false, {data[2]}});
    }
    attempt([&] { hdf5::decode_chunk(filters, data[3], bytes.subspan(8), load_le<uint16_t>(data + 4)); });
    return 0;
  }
  static const fs::path path = fs::temp_directory_path() / fmt::format("cbk-fuzz-{}.h5", getpid());
  write_file(path, as_text(bytes), true);
  const MemoryBar bar(size);
  attempt([&] { touch(h5::read(MappedFile::open(path), {}).root); });
  attempt([&] { hdf5::inspect(path); });
  attempt([&] { edit(path); });
  return 0;
}
