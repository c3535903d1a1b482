// Datasets as tensors, with one leaf for each stored object.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "host/formats/h5/external.hpp"
#include "host/formats/h5/places.hpp"
#include "host/formats/hdf5/library/library_reader.hpp"

namespace cbk::h5 {

/// An object in one of the files of a checkpoint.
struct Located {
  std::shared_ptr<hdf5::File> file;
  hdf5::ObjectHeader object;
  std::string name;  // as it was asked for
};

class Datasets {
 public:
  explicit Datasets(ExternalFiles& files) : files_(files) {}

  [[nodiscard]] ExternalFiles& files() { return files_; }
  /// Of all datasets that were asked for.
  [[nodiscard]] const Places& places() const { return places_; }
  /// The object behind a link, possibly in another file.
  Located follow(const std::shared_ptr<hdf5::File>& file, const hdf5::Link& link);
  /// The dataset at a path; an error names it if it is absent or not a dataset.
  Located find(const std::shared_ptr<hdf5::File>& file, std::string_view path);

  struct As {
    std::optional<DType> dtype;  // what the elements shall be; bfloat16 reads 16-bit integers as raw bits
    TensorLeaf::Role role = TensorLeaf::Role::tensor;
  };
  /// The leaf of a stored dataset. A second request for it returns the same node: a tie. If its elements are
  /// stored in an unsupported way, or in a missing file, reading them is an error.
  Value leaf(const Located& located, const As& as);
  /// The one element of a dataset.
  Value scalar(const Located& located);
  /// Whether a dataset contains strings or sequences of bytes.
  static bool holds_texts(const Located& located);
  /// Reads such a dataset in TensorFlow's form (formats/tensorflow/foreign.hpp).
  Value texts(const Located& located);
  /// Raw little-endian elements in a separate file.
  Value file_tensor(const std::string& path, DType dtype, const Shape& shape);

 private:
  using Key = std::tuple<const hdf5::File*, uint64_t, int, TensorLeaf::Role>;
  Tensor tensor(const Located& located, std::optional<DType> wanted);
  StoragePtr storage(const Located& located, const hdf5::Dataset& dataset, DType dtype);
  StoragePtr by_library(const Located& located, const hdf5::Dataset& dataset, DType dtype);
  ExternalFiles& files_;
  Places places_;
  std::map<Key, Value> leaves_;
  std::map<const hdf5::File*, std::shared_ptr<hdf5::LibraryReader>> libraries_;
};

/// An expression of a JIT graph over its arguments, kept without being computed.
Value make_graph_tensor(const std::string& graph, DType dtype, const Shape& shape, const Value& args);

/// A shape from a list of numbers from an attribute or JSON. Errors: `format`.
Shape to_shape(const Value& list);

}  // namespace cbk::h5
