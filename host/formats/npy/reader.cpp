#include "host/formats/npy/reader.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/formats/npy/header.hpp"
#include "host/tensor/storage.hpp"

namespace cbk::npy {
namespace {

Tensor read_tensor(const std::shared_ptr<const MappedFile>& file) {
  Header header = read_header(file->bytes());
  const uint64_t size =
      checked_mul(static_cast<uint64_t>(numel_of(header.shape)), size_of(header.dtype), "an array");
  if (size != file->size() - header.data_start) {
    fail(Errc::format, "an array {} of {} needs {} bytes, and {} follow the header", to_string(header.shape),
         name_of(header.dtype), size, file->size() - header.data_start);
  }
  View view;
  view.storage = map_storage(file, header.data_start, size);
  const uint32_t part = is_complex(header.dtype) ? size_of(header.dtype) / 2 : size_of(header.dtype);
  if (header.is_big_endian && part > 1) view.storage = swapped_storage(view.storage, part);
  view.dtype = header.dtype;
  view.strides = contiguous_strides(header.shape);
  if (header.is_column_major) {
    view.strides = contiguous_strides(Shape(header.shape.rbegin(), header.shape.rend()));
    std::reverse(view.strides.begin(), view.strides.end());
  }
  view.shape = std::move(header.shape);
  return Tensor::from_view(std::move(view));
}

}  // namespace

Checkpoint read(const std::shared_ptr<const MappedFile>& file) {
  auto root = std::make_shared<Dict>();
  root->set(file->path().stem().string(), read_tensor(file));
  Checkpoint checkpoint;
  checkpoint.path = file->path();
  checkpoint.format = "npy";
  checkpoint.root = std::move(root);
  checkpoint.files = {file->path()};
  return checkpoint;
}

}  // namespace cbk::npy
