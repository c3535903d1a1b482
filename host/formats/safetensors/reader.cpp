#include "host/formats/safetensors/reader.hpp"

#include <algorithm>

#include "host/formats/safetensors/header.hpp"

namespace cbk::safetensors {
namespace {

constexpr uint64_t leaf_bytes = 700;  // in memory, about

/// Elements smaller than a byte can be listed, but not computed with or copied.
Value described(const Entry& entry) {
  auto object = std::make_shared<Object>();
  object->type = fmt::format("safetensors.{}", entry.dtype->name);
  object->repr =
      fmt::format("{} {} ({} bits each)", entry.dtype->name, to_string(entry.shape), entry.dtype->bits);
  return object;
}

Value read_entry(const std::shared_ptr<const MappedFile>& file, const Header& header, const Entry& entry) {
  if (!entry.dtype->dtype) return described(entry);
  View view;
  view.storage = whole_or_lost(file, header.data_start + entry.begin, entry.end - entry.begin);
  view.dtype = *entry.dtype->dtype;
  view.shape = entry.shape;
  view.strides = contiguous_strides(entry.shape);
  return Tensor::from_view(std::move(view));
}

}  // namespace

bool looks_like_safetensors(ByteView head) {
  if (head.size() < 9 || head[8] != std::byte{'{'}) return false;
  const auto is_text = [](std::byte byte) { return byte >= std::byte{0x20} && byte < std::byte{0x7F}; };
  return !std::all_of(head.begin(), head.begin() + 8, is_text);
}

Checkpoint read(std::shared_ptr<const MappedFile> file, const OpenOptions& options, MemoryBudget& memory) {
  Header header = read_header(*file, options.salvage);
  memory.charge(header.entries.size() * leaf_bytes);
  auto root = std::make_shared<Dict>();
  root->reserve(header.entries.size());
  for (const Entry& entry : header.entries) {
    root->set(entry.name, within([&] { return "tensor " + quote(entry.name); },
                                 [&] { return read_entry(file, header, entry); }));
  }
  Checkpoint checkpoint;
  checkpoint.path = file->path();
  checkpoint.format = "safetensors";
  checkpoint.root = std::move(root);
  checkpoint.metadata = std::move(header.metadata);
  checkpoint.files = {file->path()};
  return checkpoint;
}

Value inspect(const fs::path& path) {
  return within(fmt::format("cannot inspect '{}'", path.string()), [&] {
    const auto file = MappedFile::open(path);
    const Header header = read_header(*file);
    const Value tensors = Value::list();
    for (const Entry& entry : header.entries) {
      const Value shape = Value::list();
      for (int64_t extent : entry.shape) shape.as_sequence().items.emplace_back(extent);
      const Value info = Value::dict();
      info.as_dict().set("name", entry.name);
      info.as_dict().set("dtype", entry.dtype->name);
      info.as_dict().set("shape", shape);
      info.as_dict().set("begin", static_cast<int64_t>(header.data_start + entry.begin));
      info.as_dict().set("stop", static_cast<int64_t>(header.data_start + entry.end));
      tensors.as_sequence().items.push_back(info);
    }
    Value out = Value::dict();
    out.as_dict().set("metadata", header.metadata);
    out.as_dict().set("tensors", tensors);
    return out;
  });
}

}  // namespace cbk::safetensors
