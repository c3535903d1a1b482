#include "host/formats/gguf/reader.hpp"

#include "host/base/error.hpp"
#include "host/formats/gguf/header.hpp"
#include "host/value/unreadable.hpp"

namespace cbk::gguf {
namespace {

constexpr std::string_view metadata_key = "metadata";

/// Why the blocks of a type cannot be decoded; empty if they can.
std::string why_not(const Type& type, bool is_big_endian) {
  if (type.decode == nullptr) return fmt::format("blocks of the type {} cannot be decoded", type.name);
  if (is_big_endian) return fmt::format("big-endian blocks of the type {} cannot be decoded", type.name);
  return "";
}

Value read_tensor(const std::shared_ptr<const MappedFile>& file, const Header& header, const TensorInfo& info,
                  bool may_be_cut) {
  if (info.type == nullptr) {
    return unreadable(fmt::format("{}: its type has the number {}, which is not known", quote(info.name),
                                  info.type_number));
  }
  const bool is_cut = info.size > file->size() || info.offset > file->size() - info.size;
  if (is_cut && !may_be_cut) {
    fail(Errc::format, "it should end at byte {}, but the file has {}; is the file cut short?",
         info.offset + info.size, file->size());
  }
  View view;
  view.storage = whole_or_lost(file, info.offset, info.size);
  view.dtype = info.type->dtype.value_or(DType::float32);
  if (is_cut) {
    view.storage = unreadable_storage(static_cast<uint64_t>(numel_of(info.shape)) * size_of(view.dtype),
                                      Error(Errc::format, std::string(view.storage->problem())));
  } else if (!info.type->dtype) {
    view.storage =
        decoded_storage(std::move(view.storage), *info.type, why_not(*info.type, header.is_big_endian));
  } else if (header.is_big_endian && size_of(view.dtype) > 1) {
    view.storage = swapped_storage(std::move(view.storage), size_of(view.dtype));
  }
  view.shape = info.shape;
  view.strides = contiguous_strides(view.shape);
  return Tensor::from_view(std::move(view));
}

/// A whole number of the metadata; nothing: it has none.
std::optional<int64_t> number_in(const Value& metadata, std::string_view key) {
  const Value* found = metadata.find(key);
  const bool is_number = found != nullptr && found->is(Value::Kind::integer) && found->as_integer().fits;
  return is_number ? std::optional(found->as_int()) : std::nullopt;
}

/// Warns that a model in several files is opened file by file.
void warn_of_parts(const Value& metadata, std::vector<std::string>& warnings) {
  const auto count = number_in(metadata, "split.count");
  if (count && *count > 1) {
    warnings.push_back(
        fmt::format("this is one of {} files of a model: the tensors of the others are not in it; "
                    "open their folder",
                    *count));
  }
}

/// Warns of bytes between tensors, or behind them, that are in none.
void warn_of_rest(const Header& header, uint64_t size, std::vector<std::string>& warnings) {
  uint64_t known = header.data_start;
  for (const TensorInfo& info : header.tensors) known += align_up(info.size, header.alignment);
  if (size <= known) return;
  warnings.push_back(
      fmt::format("{} of the file are in no tensor, and are not read", format_size(size - known)));
}

}  // namespace

Checkpoint read(const std::shared_ptr<const MappedFile>& file, const OpenOptions& options,
                const MemoryPtr& memory) {
  const Header header = read_header(file, *memory);
  Checkpoint checkpoint;
  auto root = std::make_shared<Dict>();
  root->reserve(header.tensors.size() + 1);
  root->set(metadata_key, header.metadata);
  bool has_unreadable = false;
  for (const TensorInfo& info : header.tensors) {
    if (root->find(info.name) != nullptr) fail(Errc::format, "two values are named {}", quote(info.name));
    Value tensor = within([&] { return "tensor " + quote(info.name); },
                          [&] { return read_tensor(file, header, info, options.salvage); });
    has_unreadable = has_unreadable || info.type == nullptr ||
                     (!info.type->dtype && info.type->decode == nullptr) ||
                     (!info.type->dtype && header.is_big_endian);
    root->set(info.name, std::move(tensor));
  }
  file->drop(0, header.data_start);
  checkpoint.path = file->path();
  checkpoint.format = "gguf";
  checkpoint.version = fmt::format("{}{}", header.version, header.is_big_endian ? " big-endian" : "");
  checkpoint.root = std::move(root);
  checkpoint.files = {file->path()};
  warn_of_parts(header.metadata, checkpoint.warnings);
  if (!has_unreadable) warn_of_rest(header, file->size(), checkpoint.warnings);
  checkpoint.has_unreadable = has_unreadable;
  return checkpoint;
}

Checkpoint read_split(std::span<const std::shared_ptr<const MappedFile>> files, const OpenOptions& options,
                      const MemoryPtr& memory) {
  Checkpoint out;
  std::optional<int64_t> total;  // tensors of all files
  for (const auto& file : files) {
    const std::string name = file->path().filename().string();
    within(fmt::format("'{}'", name), [&] {
      Checkpoint part = read(file, options, memory);
      const auto stated = [&](std::string_view key) { return number_in(*part.root.find(metadata_key), key); };
      const auto count = stated("split.count");
      if (count && *count != static_cast<int64_t>(files.size()))
        fail(Errc::format, "it is one of {} files (split.count), and there are {}", *count, files.size());
      const auto number = stated("split.no");
      if (number && *number != static_cast<int64_t>(out.files.size()))
        fail(Errc::format, "it is file {} of the model (split.no), counted from 0, and should be file {}",
             *number, out.files.size());
      total = total ? total : stated("split.tensors.count");
      out.files.push_back(file->path());
      out.has_unreadable = out.has_unreadable || part.has_unreadable;
      if (out.root.is_none()) {
        part.warnings.clear();  // that it is one of several files
        part.files.swap(out.files);
        out = std::move(part);
        return;
      }
      for (const auto& [key, value] : part.root.as_dict().entries()) {
        if (key.as_string() == metadata_key) continue;
        if (out.root.find(key.as_string()) != nullptr)
          fail(Errc::format, "another file has {}, too", quote(key.as_string()));
        out.root.as_dict().set(key, value);
      }
    });
  }
  const auto found = static_cast<int64_t>(out.root.as_dict().size()) - 1;  // without the metadata
  if (total && *total != found)
    fail(Errc::format, "the model has {} tensors (split.tensors.count), and its files have {}", *total,
         found);
  return out;
}

}  // namespace cbk::gguf
