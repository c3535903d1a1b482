#include "host/formats/h5/file_writer.hpp"

#include <algorithm>

namespace cbk::h5 {
namespace {

constexpr uint64_t large = 65536;
constexpr uint64_t page = 4096;
constexpr uint64_t worth_packing = 4096;
constexpr size_t max_rank = 32;

std::string_view datatype_of(DType dtype) {
  static const auto table = [] {
    std::vector<std::string> types(dtype_count);
    for (int i = 0; i < dtype_count; ++i) {
      const auto each = static_cast<DType>(i);
      if (!is_floating(each) || size_of(each) > 1)
        types[static_cast<size_t>(i)] = hdf5::encode_datatype(each);
    }
    return types;
  }();
  return table[static_cast<size_t>(dtype)];
}

}  // namespace

FileWriter::Plan FileWriter::plan_dataset(const std::string& key, std::string_view name,
                                          const Tensor& tensor) {
  if (datatype_of(tensor.dtype()).empty()) {
    fail(Errc::dtype,
         "{} is {}, which HDF5 has no type for; write a PyTorch (.pt) or safetensors file, which has it",
         quote(key), name_of(tensor.dtype()));
  }
  if (tensor.shape().size() > max_rank)
    fail(Errc::shape, "{} has {} dimensions, HDF5 allows {}", quote(key), tensor.dim(), max_rank);
  Plan plan{tensor, std::nullopt};
  overhead_ += 400 + 2 * name.size();
  if (tensor.nbytes() == 0) return plan;
  plan.item = static_cast<uint32_t>(items_.size());
  if (compression_ != Compression::none && !tensor.shape().empty() && tensor.nbytes() >= worth_packing) {
    plan.packed = &packed_.emplace_back(compression_, tensor, packed_file_);
    items_.push_back({key, tensor, Checksum::none, plan.packed->pieces()});
    offsets_.push_back(0);
    return plan;
  }
  // Large tensors begin on a page, small ones are packed closely.
  const uint64_t offset = align_up(data_end_, tensor.nbytes() >= large ? page : 8);
  items_.push_back({key, tensor});
  offsets_.push_back(offset);
  data_end_ = checked_add(offset, tensor.nbytes(), "the file");
  return plan;
}

hdf5::HeaderBuilder FileWriter::start_dataset(hdf5::Builder& builder, const Plan& plan) const {
  const Shape& shape = plan.tensor.shape();
  hdf5::HeaderBuilder header;
  header.add(hdf5::MessageType::dataspace,
             shape.empty() ? hdf5::scalar_dataspace() : hdf5::encode_dataspace(shape));
  header.add(hdf5::MessageType::datatype, datatype_of(plan.tensor.dtype()));
  header.add(hdf5::MessageType::fill_value, hdf5::default_fill_value());
  if (plan.packed != nullptr) {
    plan.packed->describe(builder, header);
    return header;
  }
  header.add(hdf5::MessageType::layout,
             plan.item ? hdf5::encode_contiguous(offsets_[*plan.item], plan.tensor.nbytes())
                       : hdf5::encode_contiguous(hdf5::undefined_address, 0));
  return header;
}

hdf5::HeaderBuilder FileWriter::start_empty_dataset(DType dtype) {
  hdf5::HeaderBuilder header;
  header.add(hdf5::MessageType::dataspace, hdf5::null_dataspace());
  header.add(hdf5::MessageType::datatype, datatype_of(dtype));
  header.add(hdf5::MessageType::fill_value, hdf5::default_fill_value());
  header.add(hdf5::MessageType::layout, hdf5::encode_contiguous(hdf5::undefined_address, 0));
  return header;
}

void FileWriter::add_number(hdf5::HeaderBuilder& header, std::string_view name, double value) {
  std::string data;
  append_le(data, value);
  header.add_attribute(name, datatype_of(DType::float64), hdf5::scalar_dataspace(), data);
}

void FileWriter::add_count(hdf5::HeaderBuilder& header, std::string_view name, int64_t count) {
  std::string data;
  append_le(data, count);
  header.add_attribute(name, datatype_of(DType::int64), hdf5::scalar_dataspace(), data);
}

std::vector<Slot> FileWriter::lay_out_in(StagedFile& file) {
  file_ = &file;
  const bool is_packed = !packed_.empty();
  if (!is_packed) make_room();
  const uint64_t end = align_up(data_end_, 8);
  file_->reserve(end);
  packed_file_ = {file_, end};
  if (!is_packed) write_structures(hdf5::superblock_size);
  std::vector<Slot> slots;
  slots.reserve(items_.size());
  for (const uint64_t offset : offsets_) slots.push_back({file_, offset});
  return slots;
}

void FileWriter::make_room() {
  const uint64_t end = add_structures(hdf5::superblock_size, [](uint64_t, std::string_view) {});
  const bool has_pages =
      std::ranges::any_of(items_, [](const Item& item) { return item.tensor.nbytes() >= large; });
  const uint64_t room = align_up(end - hdf5::superblock_size, has_pages ? page : 8);
  for (uint64_t& offset : offsets_) offset = checked_add(offset, room, "the file");
  data_end_ = checked_add(data_end_, room, "the file");
}

void FileWriter::write_structures(uint64_t start) {
  add_structures(start,
                 [&](uint64_t address, std::string_view bytes) { file_->write(address, as_bytes(bytes)); });
}

uint64_t FileWriter::add_structures(uint64_t start, hdf5::Builder::Sink sink) {
  hdf5::Builder builder(start, std::move(sink));
  hdf5::HeaderBuilder root;
  const hdf5::GroupTables tables = builder.add_group_tables(build(builder, root));
  if (!origin_.empty()) builder.add_text(root, origin_name, origin_);
  root.add(hdf5::MessageType::symbol_table, hdf5::encode_symbol_table(tables.tree, tables.heap));
  const uint64_t root_address = builder.add(root.finish());
  builder.finish();
  superblock_ =
      hdf5::encode_superblock(root_address, tables, std::max(builder.end(), align_up(data_end_, 8)));
  return builder.end();
}

void FileWriter::finish(const std::vector<uint32_t>& /*crcs*/) {
  // The places of chunks are known once all are written.
  if (!packed_.empty()) write_structures(align_up(packed_file_.end, 8));
  file_->write(0, as_bytes(superblock_));
}

}  // namespace cbk::h5
